"""The forms of a checkpoint on disk.

Every form has a manifest, which is written last, and without which the checkpoint does not exist.
`script_checkpoints`: the tracked objects of a script (`trainer_shim.init`), in one file. `sharded_states`: the sharded
models and optimizers among them, which all ranks write together. `framework_checkpoints`: the files that a framework
has written itself (`trainer_shim.attach`).

A new kind of checkpoint is a module here, and a case in `session/context_startup.py` (`init`) or
`session/companion_startup.py` (`attach`): these choose the form, and refuse a directory of another form. When to save
is decided in `checkpointing/save_history.py`, at a stop in `preemption/stop_requests.py`, and before an evaluation in
`session/evaluation_time.py`.
"""
