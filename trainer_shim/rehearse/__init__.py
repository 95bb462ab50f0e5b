"""A dress rehearsal: does a script survive stops, resizes and kills with the result of the undisturbed run?

`python -m trainer_shim.rehearse train.py` runs it in real processes on this host's CPU. `plan` says what happens when,
`launch` starts the ranks, `probe` records inside them, `history` reads that, `compare` and `causes` judge.
"""
