"""The forms of a checkpoint on disk. A new kind of checkpoint is a module here; when to save is not decided here.

Every form has a manifest, which is written last, and without which the checkpoint does not exist.
`script_checkpoints`: the tracked objects of a script (`trainer_shim.init`), in one file. `sharded_states`: the sharded
models and optimizers among them, which all ranks write together. `framework_checkpoints`: the files that a framework
has written itself (`trainer_shim.attach`).
"""
