import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xectool.runlog.json_lines import all_lines
from xectool.runlog.records import EpochRecord, EventRecord, StepRecord, decode, encode

FLOATS = st.floats(allow_nan=True, allow_infinity=True)


def same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


@settings(max_examples=60)
@given(loss=FLOATS, lr=FLOATS, losses=st.dictionaries(st.text(), FLOATS, max_size=4), step=st.integers(1, 2**60))
def test_step_record_survives_its_line_with_any_float_and_name(loss, lr, losses, step):
    line = encode(StepRecord(1, step, 0.25, 0.5, loss, losses, lr))
    back = decode(line)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert back.step == step
    assert same(back.loss, loss)
    assert same(back.lr, lr)
    assert back.losses.keys() == losses.keys()
    assert all(same(back.losses[name], losses[name]) for name in losses)


def test_nonfinite_values_are_standard_json():
    line = encode(EpochRecord(1, 4, 0.0, 0.0, {"val/loss": math.nan, "val/l1": -math.inf}))
    content = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert content["metrics"] == {"val/loss": "NaN", "val/l1": "-Infinity"}
    assert math.isnan(decode(line).metrics["val/loss"])


def test_event_data_takes_numpy_paths_and_nonfinite_values(tmp_path):
    data = {"loss": np.float32("nan"), "sensors": np.arange(3), "path": tmp_path, "nested": {"x": [math.inf, 1]}}
    back = decode(encode(EventRecord("nonfinite_skip", 0.0, 0.0, data=data)))
    assert back.data["sensors"] == [0, 1, 2]
    assert back.data["path"] == str(tmp_path)
    assert math.isnan(float(back.data["loss"]))
    assert float(back.data["nested"]["x"][0]) == math.inf


def test_field_of_a_newer_version_is_skipped_and_a_missing_one_takes_its_default():
    line = b'{"r":"step","epoch":1,"step":2,"time":0,"mono":0,"loss":1,"colour":"blue"}'
    record = decode(line)
    assert record.step == 2
    assert record.clip_coef == 1.0


def test_record_kind_of_a_newer_version_is_no_damage():
    assert decode(b'{"r":"stack","frames":[]}') is None
    assert decode(b'{"r":["stack"]}') is None


def test_lines_of_wrong_types_are_counted_and_the_rest_is_read(tmp_path):
    lines = [b'{"r":"event","n":[1],"kind":"a","time":1,"mono":1}', b'{"r":"event","kind":"b","time":1,"mono":{}}',
             b'{"r":"event","kind":"c","time":1,"mono":1}']  # fmt: skip
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    found = all_lines(tmp_path / "events.jsonl")
    assert ([line.record.kind for line in found.lines], found.damaged) == (["c"], 2)


@pytest.mark.parametrize(
    "line",
    [
        b"[1]",
        b"{",
        b'{"r":"step","epoch":1}',
        b'{"r":"step","step":1,"loss":"x"}',
        b'{"r":"event","kind":"note","time":null,"mono":1}',
        b'{"r":"event","kind":"note","time":1,"mono":1,"step":[3]}',
        b'{"r":"event","kind":"note","time":1,"mono":1,"step":1e400}',
        b'{"r":"event","kind":"note","time":1,"mono":1,"data":[1]}',
        b'{"r":"epoch","epoch":1,"step":1,"time":1,"mono":1,"metrics":[1]}',
        b'{"r":"epoch","epoch":1,"step":1,"time":1,"mono":1,"metrics":{"a":null}}',
    ],
)
def test_line_that_is_no_record_is_refused(line):
    with pytest.raises(ValueError, match=r".+"):
        decode(line)
