"""What is left of a training that was stopped and started again."""

import json


def of_directory(directory, last_step=None):
    """``of_steps`` of the training whose logs are in a directory."""
    steps = (
        (int(path.name.split("-")[1]), json.loads(line))
        for path in directory.glob("trained-*-*.jsonl")
        for line in path.read_text().splitlines()
    )
    return of_steps(steps, last_step)


def of_steps(steps, last_step=None):
    """{epoch: sorted indices} of the steps that count: of each step, what the last trainer that did it trained.

    `steps` are (generation, line) of all trainers, as tests/shim/train.py logs its lines. Those beyond the last step of
    the finished training did not survive.
    """
    last = {}
    for generation, step in steps:
        if last_step is not None and step["step"] > last_step:
            continue
        have, indices = last.get(step["step"], (0, []))
        if generation > have:
            last[step["step"]] = (generation, [(step["epoch"], step["indices"])])
        elif generation == have:
            indices.append((step["epoch"], step["indices"]))
    seen = {}
    for _, parts in last.values():
        for epoch, indices in parts:
            seen.setdefault(epoch, []).extend(indices)
    return {epoch: sorted(indices) for epoch, indices in seen.items()}
