"""Writes job records as scontrol 22.05 does; each may have any text of its user."""

FIELDS = {
    "job_id": 22, "array_job_id": 0, "array_task_id": None, "array_task_string": "", "het_job_id": 0, "name": "train",
    "user_name": "ann", "user_id": 1000, "account": "lab", "partition": "main", "qos": "normal", "comment": "metasched",
    "admin_comment": "", "job_state": "PENDING", "reason": "JobHeldAdmin", "priority": 0, "submit_time": 1795191940,
    "eligible_time": "Unknown", "start_time": "Unknown", "end_time": "Unknown", "time_limit": "UNLIMITED",
    "nodes": "1", "tasks": "2", "tasks_per_node": "0", "cpus": "6", "memory": "MinMemoryCPU=500M", "features": "v100",
    "required_nodes": "n[3-4]", "excluded_nodes": "(null)", "shared": "OK", "restart_cnt": 1, "requeue": 1,
    "dependency": "(null)", "exit_code": "0:0", "batch_flag": 1, "tres": "cpu=6,mem=3000M,node=2,billing=6",
    "allocation": (), "tres_lines": ("TresPerNode=gres:gpu:v100:2",), "resv_name": "", "command": "/home/ann/job.sh",
    "directory": "/home/ann", "run_time": "00:00:00", "network": "(null)", "login": "login",
    "evaluated": 1795191941, "mail_user": "",
}  # fmt: skip


def text_of(*records):
    """What `scontrol -d show job` prints of records, each given by what differs from a pending job's."""
    return "\n\n".join("\n   ".join(lines(FIELDS | record)) + "\n   " for record in records) + "\n\n"


def lines(record):
    """The lines of one record."""
    head = f"JobId={record['job_id']} "
    if record["array_job_id"]:
        task = record["array_task_string"] if record["array_task_id"] is None else record["array_task_id"]
        head += f"ArrayJobId={record['array_job_id']} ArrayTaskId={task} "
    if record["het_job_id"]:
        head += f"HetJobId={record['het_job_id']} HetJobOffset=0 "
    r = record
    return [
        f"{head}JobName={r['name']}",
        *([f"HetJobIdSet={r['het_job_id']}"] if r["het_job_id"] else []),
        f"UserId={r['user_name']}({r['user_id']}) GroupId={r['user_name']}({r['user_id']}) MCS_label=N/A",
        f"Priority={r['priority']} Nice=0 Account={r['account']} QOS={r['qos']}",
        f"JobState={r['job_state']} Reason={r['reason']} Dependency={r['dependency']}",
        f"Requeue={r['requeue']} Restarts={r['restart_cnt']} BatchFlag={r['batch_flag']} ExitCode={r['exit_code']}",
        "DerivedExitCode=0:0",
        f"RunTime={r['run_time']} TimeLimit={r['time_limit']} TimeMin=N/A",
        f"SubmitTime={r['submit_time']} EligibleTime={r['eligible_time']}",
        f"AccrueTime={r['eligible_time']}",
        f"StartTime={r['start_time']} EndTime={r['end_time']} Deadline=N/A",
        f"SuspendTime=None SecsPreSuspend=0 LastSchedEval={r['evaluated']} Scheduler=Main",
        f"Partition={r['partition']} AllocNode:Sid={r['login']}:1",
        f"ReqNodeList={r['required_nodes']} ExcNodeList={r['excluded_nodes']}",
        "NodeList=",
        f"NumNodes={r['nodes']} NumCPUs={r['cpus']} NumTasks={r['tasks']} CPUs/Task=1 ReqB:S:C:T=0:0:*:*",
        f"TRES={r['tres']}",
        f"Socks/Node=* NtasksPerN:B:S:C={r['tasks_per_node']}:0:*:* CoreSpec=*",
        *(["JOB_GRES=gpu", *(f"  {line}" for line in r["allocation"])] if r["allocation"] else []),
        f"MinCPUsNode=1 {r['memory']} MinTmpDiskNode=0",
        f"Features={r['features']} DelayBoot=00:00:00",
        *([f"Reservation={r['resv_name']}"] if r["resv_name"] else []),
        f"OverSubscribe={r['shared']} Contiguous=0 Licenses=(null) Network={r['network']}",
        f"Command={r['command']}",
        f"WorkDir={r['directory']}",
        *([f"AdminComment={r['admin_comment']} "] if r["admin_comment"] else []),
        *([f"Comment={r['comment']} "] if r["comment"] else []),
        *(
            [f"StdErr={r['directory']}/out", "StdIn=/dev/null", f"StdOut={r['directory']}/out"]
            if r["batch_flag"]
            else []
        ),
        "Power=",
        *r["tres_lines"],
        *([f"MailUser={r['mail_user']} MailType=END"] if r["mail_user"] else []),
    ]
