-- Slurm's job_submit plugin for metasched: holds the jobs that metasched schedules, and refuses their owners' changes.
-- Install beside slurm.conf, with JobSubmitPlugins=lua. slurmctld reads it again whenever it changes.
-- Edit these five lines. The daemon's configuration must name the same partitions and QOS.
local PARTITIONS = {}  -- partitions whose batch jobs metasched schedules, such as {"train", "long"}
local QOS = {}         -- QOS likewise, named by the job or its user's DefaultQOS; case does not matter
local SHARED = nil     -- metasched's shared directory, such as "/home/metasched": METASCHED_SHARED in its jobs
local SHARDS = nil     -- shards of each GPU in gres.conf, such as 2: requests for one GPU a node become such shards
local WRONG_TAGS = "warn"  -- "warn": sbatch tells of a wrong word in the tag; "refuse": sbatch fails; "ignore": neither

local WORD = "metasched"
local STAMP = "^%s*" .. WORD .. ":%x+(:?%a*)"  -- begins AdminComment of its jobs; ":held" after sbatch --hold
local OUT_OF_REACH = 4102444800  -- a begin time at which no job starts, unix seconds (2100-01-01)
local UNCHANGED = {}  -- values that Slurm passes for fields that a modification does not name
for _, name in ipairs({"NO_VAL", "NO_VAL16", "NO_VAL64", "NO_VAL8"}) do
  if slurm[name] then UNCHANGED[slurm[name]] = true end
end

-- Fields that an owner must not change: the job would start, leave metasched, or get another size.
local KEPT = {
  "priority", "comment", "partition", "qos", "requeue", "gres", "tres_per_job", "tres_per_task", "tres_per_socket",
  "min_nodes", "max_nodes", "req_nodes", "begin_time",
}

-- The user id of SlurmUser. Lua has no call for it, but slurmctld, which runs this script, runs as SlurmUser.
local function slurm_user()
  local status = io.open("/proc/self/status")
  if not status then return nil end
  local uid = status:read("*a"):match("\nUid:%s+%d+%s+(%d+)")
  status:close()
  return tonumber(uid)
end

-- Keys of the tag, and values of keys that are words or whole numbers (metasched/slurm/tags.py; a test compares both).
-- The daemon checks all values.
local KEYS = {
  "min_gpus", "max_gpus", "sizes", "preempt", "weight", "max_nodes", "gpu_types", "total_steps", "slo", "model",
  "trials", "batch", "adapts", "regimes", "app", "tuner",
}
local VALUES = {
  preempt = {"checkpoint", "suspend", "no"},
  trials = {"yes", "no"},
  batch = {"adaptive", "fixed", "own"},
  adapts = {"static", "accordion", "gns", "schedule"},
}
local WHOLE = {"min_gpus", "max_gpus", "max_nodes", "total_steps", "regimes"}
local SHOWN = 60  -- characters of a user's word in a message

local function quoted(word)
  return "'" .. word:sub(1, SHOWN):gsub("[^%w%p]", "?") .. "'"
end

-- The number of single-character changes that turn one word into the other (Levenshtein's distance).
local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local above = row[j]
      local change = a:byte(i) == b:byte(j) and 0 or 1
      row[j] = math.min(above + 1, row[j - 1] + 1, diagonal + change)
      diagonal = above
    end
  end
  return row[#b]
end

-- The most similar word of a list; nil where none is similar: of a short word, a part has to be right.
local function nearest(key, list)
  local best, least = nil, 3
  key = key:sub(1, SHOWN):lower():gsub("-", "_")
  for _, known in ipairs(list) do
    local found = distance(key, known)
    if found < math.min(least, #known) then best, least = known, found end
  end
  return best
end

local function has(list, name)
  for _, known in ipairs(list) do
    if known == name then return true end
  end
  return false
end

local function hint_for(word, list)
  local near = nearest(word, list)
  return near and ("did you mean " .. near .. "?") or ("known are " .. table.concat(list, ", "))
end

-- The first wrong word of a tag, in a sentence; nil for a tag without one.
local function wrong_word(comment)
  if (comment or ""):match("^%s*(%S+)") ~= WORD then return nil end
  local seen = {}
  for word in comment:match("^%s*%S+(.*)$"):gmatch("%S+") do
    local key, value = word:match("^([^=]*)=(.*)$")
    if not key or value == "" then
      return quoted(word) .. " is not of the form key=value (no spaces around the '=')"
    end
    if seen[key] then return quoted(key) .. " is given twice" end
    seen[key] = true
    if not has(KEYS, key) then
      return "there is no key " .. quoted(key) .. "; " .. hint_for(key, KEYS)
    end
    if VALUES[key] and not has(VALUES[key], value) then
      return quoted(word) .. ": there is no such value; " .. hint_for(value, VALUES[key])
    end
    if has(WHOLE, key) and (not value:match("^%d+$") or tonumber(value) < 1) then
      return quoted(word) .. ": write a whole number from 1"
    end
  end
  return nil
end

local function any_in(list, names)  -- names may be "a,b"
  for name in (names or ""):gmatch("[^,]+") do
    if has(list, name) then return true end
  end
  return false
end

local function lower(list)
  local result = {}
  for i, name in ipairs(list) do result[i] = name:lower() end
  return result
end

local function is_ours(job_desc, partition, qos)
  if qos == "" then qos = job_desc.default_qos or "normal" end  -- Slurm's default
  return (job_desc.comment or ""):match("^%s*(%S+)") == WORD
    or any_in(PARTITIONS, partition)
    or any_in(lower(QOS), (qos or ""):lower())
end

local function default_of(part_list)
  if #PARTITIONS == 0 then return nil end
  for name, partition in pairs(part_list or {}) do
    if partition.flag_default == 1 then return name end
  end
  return nil
end

-- A new uid, the job's lasting identity (docs/developer/PROTOCOL.md). The daemon makes uids of the same form.
-- Later only a Slurm administrator may write AdminComment, so this plugin lets the daemon be an operator.
local minted = 0
local function mint()
  local source = io.open("/dev/urandom", "rb")
  if not source then return nil end
  local a, b, c = source:read(3):byte(1, 3)
  source:close()
  minted = (minted + 1) % 4096
  return string.format("%08x%03x%05x", os.time() % 2^32, minted, (a * 65536 + b * 256 + c) % 2^20)
end

-- Slurm cannot turn a request for GPUs into one for shards later. So a request for one GPU on each node becomes one for
-- all shards of a GPU at submission; metasched requests half of them where two jobs share the GPU.
local function as_shards(job_desc)
  local tag = job_desc.comment or ""
  if tag:match("max_gpus=") or tag:match("min_gpus=") or (job_desc.shared == 0) then return end
  for _, name in ipairs({"tres_per_job", "tres_per_socket", "tres_per_task", "cpus_per_tres", "mem_per_tres"}) do
    if (job_desc[name] or "") ~= "" then return end
  end
  -- "gres:gpu:v100:1" on Slurm 22.05, "gres/gpu:v100:1" on later releases.
  local separator, asked = (job_desc.tres_per_node or job_desc.gres or ""):match("^gres([:/])gpu(.*)$")
  if not separator then return end
  local kind, count = asked:match("^:([%a_.+][%w_.+-]*):(%d+)$")
  if not kind then
    kind, count = asked:match("^:([%a_.+][%w_.+-]*)$"), "1"
  end
  if not kind then
    kind, count = "", asked == "" and "1" or asked:match("^:(%d+)$")
  end
  if count == "1" then
    job_desc.tres_per_node = "gres" .. separator .. "shard:" .. (kind ~= "" and kind .. ":" or "") .. SHARDS
  end
end

local function submit(job_desc, part_list)
  local words = job_desc.admin_comment or ""  -- from an earlier plugin
  if words:match(STAMP) then
    words, job_desc.admin_comment = "", ""  -- a submitted uid could be another job's
  end
  local partition = job_desc.partition or default_of(part_list)
  if not job_desc.script or not is_ours(job_desc, partition, job_desc.qos or "") then
    return  -- a job without a batch script cannot be requeued: Slurm schedules it
  end
  local wrong = WRONG_TAGS ~= "ignore" and wrong_word(job_desc.comment)
  if wrong and WRONG_TAGS == "refuse" then
    slurm.log_user("metasched: the tag in --comment is wrong: %s", wrong)
    return slurm.ERROR
  end
  local uid = mint()
  if uid then
    local held = job_desc.priority == 0 and ":held" or ""
    job_desc.admin_comment = WORD .. ":" .. uid .. held .. (words ~= "" and " " .. words or "")
  end
  job_desc.priority = 0
  job_desc.requeue = 1
  if SHARDS then as_shards(job_desc) end
  if SHARED and not job_desc.environment["METASCHED_SHARED"] then
    job_desc.environment["METASCHED_SHARED"] = SHARED
  end
  if wrong then
    slurm.log_user("metasched: the tag in --comment is wrong, so the job never starts; cancel it: %s", wrong)
  else
    slurm.log_user("metasched schedules this job; see: metasched status")
  end
end

local function deny(...)
  slurm.log_user(...)  -- Slurm shows it from 23.02 on
  return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
end

-- Whether a modification is the first release of a job that was submitted with --hold.
local function lets_go(job_desc, job_rec, mark)
  return mark == ":held" and job_desc.priority == slurm.INFINITE
    and job_rec.priority == 0 and (job_rec.restart_cnt or 0) == 0
end

local function names(value)
  return value ~= nil and not UNCHANGED[value]
end

-- Jobs whose begin time was set since their last release. They tell the daemon's releases from an administrator's on
-- behalf of the owner: the daemon sets a begin time right before each release, an administrator does not.
local timed = {}  -- by job id
local function by_administrator(job_desc, job_rec, released)
  local id = job_rec.job_id
  if names(job_desc.begin_time) and job_desc.begin_time ~= 0 then
    timed[id] = true
  elseif job_desc.priority == slurm.INFINITE then
    if released and not timed[id] then job_desc.begin_time = OUT_OF_REACH end
    timed[id] = nil
  end
end

local function modify(job_desc, job_rec, modify_uid)
  local mark = (job_rec.admin_comment or ""):match(STAMP)
  local released = lets_go(job_desc, job_rec, mark)
  if modify_uid == 0 or modify_uid ~= job_rec.user_id or modify_uid == slurm_user() then
    -- Of other users, Slurm itself admits only operators and coordinators of the account.
    if mark == ":held" then by_administrator(job_desc, job_rec, released) end
    return slurm.SUCCESS
  end
  if not mark then
    if is_ours(job_desc, job_desc.partition, job_desc.qos) then
      return deny("metasched takes jobs as they are submitted, not later: submit this one anew")
    end
    return slurm.SUCCESS
  end
  for _, name in ipairs(KEPT) do
    local value = job_desc[name]
    local allowed = (name == "priority" and released) or (name == "begin_time" and value == 0)
    if names(value) and not allowed then
      return deny("metasched schedules this job: its %s cannot be changed (scancel ends it)", name)
    end
  end
  if released then
    job_desc.begin_time = OUT_OF_REACH  -- metasched, not Slurm, starts the job
  end
  return slurm.SUCCESS
end

-- An error in this script must never prevent a submission: it is logged, and the job passes unchanged.
local function guarded(what, ...)
  local ok, result = pcall(...)
  if ok then return result or slurm.SUCCESS end
  slurm.log_error("metasched: %s: %s", what, tostring(result))
  return slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  return guarded("job_submit", submit, job_desc, part_list)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return guarded("job_modify", modify, job_desc, job_rec, modify_uid)
end

slurm.log_info("metasched: job_submit.lua loaded")
return slurm.SUCCESS
