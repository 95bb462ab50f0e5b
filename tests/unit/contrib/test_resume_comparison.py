import json

from contrib.benchmarks import resume_comparison


def write(directory, start, steps):
    """Write the records of one start: {step: indices}."""
    lines = [json.dumps({"step": step, "lr": 0.1, "indices": indices}) for step, indices in steps.items()]
    (directory / f"trained-{start}-0.jsonl").write_text("\n".join(lines) + "\n")


def test_a_later_start_replaces_the_steps_after_its_checkpoint(tmp_path):
    """Steps that a later start makes again count as it made them; the step of the stop itself is not a repeated one."""
    write(tmp_path, 1, {0: [0], 1: [1], 2: [2]})
    write(tmp_path, 2, {1: [5], 2: [6], 3: [7]})
    steps, repeated = resume_comparison.trained(tmp_path)
    assert {step: found["indices"] for step, found in steps.items()} == {0: [0], 1: [5], 2: [6], 3: [7]}
    assert repeated == 1


def test_an_exact_resume_repeats_no_step(tmp_path):
    """A start that resumes with the step before which the last one was stopped repeats none."""
    write(tmp_path, 1, {0: [0], 1: [1]})
    write(tmp_path, 2, {1: [1], 2: [2]})
    assert resume_comparison.trained(tmp_path)[1] == 0


def test_samples_are_counted_by_epoch():
    """A sample that an epoch trains twice, and one that the epoch leaves out, are counted once each."""
    steps = {0: {"indices": [0, 1]}, 1: {"indices": [1, 2]}, 2: {"indices": [0, 1]}, 3: {"indices": [2, 3]}}
    assert resume_comparison.samples_of_epochs(steps, per_epoch=2, samples=4) == (1, 1)
