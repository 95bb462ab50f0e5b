"""The rehearsal of a script: does it survive stops, resizes and kills with the result of the undisturbed run?

`python -m trainer_shim.rehearse train.py` runs the script in real processes on this host's CPU. `plan` draws the stops
and kills, `launch` starts the ranks, `probe` records inside them, `history` reads the records, `compare` compares the
runs, and `causes` explains differences.
"""
