"""The page of a run: whole, without a network, safe whatever the run is called, readable in a real browser."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from xectool import engine
from xectool.cli import boundary
from xectool.cli.app import app
from xectool.runlog.reader import RunReader
from xectool.runlog.records import EpochRecord
from xectool.runlog.writer import RunWriter

BROWSER = os.environ.get("XECTOOL_BROWSER", "")
NASTY = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """Collects tags, and what they load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]


def page_rows(text: str) -> list[list[str]]:
    """Cells of each row of each table."""
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", text)]


def browse(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--disable-quic",
        "--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files",
        f"--user-data-dir={page.parent / 'profile'}", "--enable-logging=stderr", "--v=0", "--window-size=1300,950",
        *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def tags_of(path: Path) -> Tags:
    found = Tags()
    found.feed(path.read_text())
    return found


@pytest.fixture(scope="module")
def run(files: Path, tmp_path_factory: pytest.TempPathFactory, shallow_module: None) -> Path:
    """A finished training with plots, and a message no page should take for markup."""
    folder = tmp_path_factory.mktemp("report")
    result = engine.train(files / "config.yaml", overrides=[f"checkpoint.save_dir={folder}"], run_name="seen")
    directory = Path(result.run_dir)
    assert str(directory / "report.html") in result.artifacts
    manifest = directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"run_name": "seen"', f'"run_name": "{NASTY}"'))
    return directory


def test_page_holds_everything_and_loads_nothing(run: Path) -> None:
    found = engine.report(run)
    page = Path(found.path)
    assert page == run / "report.html"
    assert found.size_bytes == page.stat().st_size
    seen = tags_of(page)
    assert "script" not in seen.tags
    assert all(address.startswith("data:") for address in seen.loaded)
    assert len([address for address in seen.loaded if address.startswith("data:image/png")]) == 1 + len(
        list((run / "plots").rglob("*.png"))
    )
    text = page.read_text()
    shown = re.findall(r'--readable: (\d+)px" src="data:image/png;base64,([^"]*)"', text)
    widths = [int.from_bytes(base64.b64decode(content)[16:20]) for _, content in shown]
    assert [int(readable) for readable, _ in shown] == [width * 70 // 130 for width in widths]
    assert len(set(widths)) > 1, "on a narrow screen four panels are wider than two"
    assert "width: var(--readable)" in text
    assert NASTY not in text
    assert "&lt;script&gt;" in text
    for words in ("val/loss", "training.lr", "Different from the default", "config.yaml", "sensor health"):
        assert words in text
    assert found.verdict in text


def test_the_command_says_what_it_is_doing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was silent for as long as it drew."""
    with RunWriter(tmp_path / "run") as writer:
        writer.event("finished", "finished", step=0, epoch=0, status="finished")
    assert boundary.run(app, ["report", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    assert said.index("diagnose the run") < said.index("write the report") < said.index("report.html")


def test_what_conventional_estimators_reach_stands_beside_the_best_weights_of_a_regressor(run: Path) -> None:
    """`train` printed it at its end, and the page, which is kept, had the network alone."""
    (end,) = [event for event in RunReader(run).events() if event.kind == "finished"]
    text = Path(engine.report(run).path).read_text()
    assert "Best weights, beside conventional estimators" in text
    reached = [f"{end.data['metrics'][name]:.6g}" for name in ("energy_res_68pct", "baseline_energy")]
    assert ["energy_res_68pct [GeV]", *reached] in page_rows(text)


def test_page_goes_where_it_is_wanted_and_says_so(run: Path, tmp_path: Path, xectool: Any) -> None:
    done = xectool("report", run, "--output", tmp_path / "deep" / "r.html", "--json")
    assert done.code == 0
    assert Path(done.document["result"]["path"]).stat().st_size == done.document["result"]["size_bytes"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["r.html"]
    assert xectool("report", run, "--output", tmp_path).code == 2
    assert xectool("report", run, "--output", run / "config.yaml").code == 2, "a file of the run is never replaced"
    assert xectool("report", tmp_path).code == 2


def test_conventional_estimators_stand_beside_the_network(tmp_path: Path) -> None:
    metrics = {
        "val/loss": 0.5,
        "mae_npho": 1.0,
        "baseline_neighbour_mae_npho": 3.0,
        "baseline_solid_angle_mae_npho": 2.0,
    }
    metrics |= {"energy_res_68pct": 0.25, "baseline_energy": 0.75}
    with RunWriter(tmp_path) as writer:
        writer.epoch(EpochRecord(epoch=1, step=4, time=0.0, mono=0.0, metrics=metrics))
    rows = page_rows(Path(engine.report(tmp_path).path).read_text())
    assert ["mae_npho", "1", "3", "2", "-"] in rows
    assert ["energy_res_68pct [GeV]", "0.25", "-", "-", "0.75"] in rows
    assert ["val/loss", "0.5"] in rows
    assert not any(row[0].startswith("baseline_") for row in rows)


def test_page_says_what_was_given_up(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.event("spike", "far off", step=9)
        writer.event("spike", "less far", step=5)
    with RunWriter(tmp_path) as writer:
        writer.resume(6, 1)
    folder = tmp_path / "incidents" / "0001"
    folder.mkdir(parents=True)
    (folder / "incident.json").write_text('{"kind": "spike", "step": 9, "attempt": 1}')
    text = Path(engine.report(tmp_path).path).read_text()
    assert text.count("9 (attempt 1, given up)") == 2
    assert "5 (attempt" not in text


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="XECTOOL_BROWSER names no browser, such as chromium")
@pytest.mark.parametrize("width", [400, 1200])
def test_a_browser_shows_it_without_complaint(run: Path, tmp_path: Path, width: int) -> None:
    engine.report(run, tmp_path / "r.html")
    # A narrow window is a frame: a browser without a screen has a least width of its own.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<body style="margin:0"><iframe src="r.html" width="{width}" height="900" style="border:0"></iframe>'
    )
    done = browse(frame, f"--screenshot={tmp_path / 'shot.png'}")
    assert (tmp_path / "shot.png").stat().st_size > 20_000
    assert not re.findall(r"CONSOLE.*", done.stderr)
    (tmp_path / "probe.html").write_text(
        f'<iframe id="f" src="r.html" width="{width}" height="900"></iframe><p id="w"></p><script>'
        'f.onload = () => { w.textContent = "width " + f.contentDocument.documentElement.scrollWidth; }</script>'
    )
    dom = browse(tmp_path / "probe.html", "--dump-dom", "--virtual-time-budget=2000").stdout
    measured = re.search(r"width (\d+)", dom)
    assert measured is not None
    assert int(measured[1]) <= width


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="XECTOOL_BROWSER names no browser, such as chromium")
@pytest.mark.parametrize("box", [".picture", "section.scroll", "pre"])
def test_a_box_is_shaded_at_the_edge_where_more_is_to_come(run: Path, tmp_path: Path, box: str) -> None:
    engine.report(run, tmp_path / "r.html")
    # Twice, without the rest of the page: as it is shown first, and at the end of its content.
    (tmp_path / "frame.html").write_text(
        '<body style="margin:0"><script>const alone = (frame, left) => { const page = frame.contentDocument; '
        f'const box = page.querySelector("{box}"); page.querySelector("main").replaceChildren(box); '
        'const wide = document.createElement("div"); wide.style = "width: 900px; height: 200px"; box.prepend(wide); '
        "box.scrollLeft = left; }</script>"
        + "".join(
            f'<iframe src="r.html" onload="alone(this, {left})" width="400" height="900" style="border:0"></iframe>'
            for left in (0, 9999)
        )
    )
    browse(tmp_path / "frame.html", "--hide-scrollbars", f"--screenshot={tmp_path / 'shot.png'}")
    shot = imread(tmp_path / "shot.png")[60:160, :, 0]
    edges = [shot[:, left : left + 3].max() for left in (18, 379, 418, 779)]
    assert [edge < 0.9 for edge in edges] == [False, True, True, False], edges


def test_an_epoch_that_was_interrupted_is_not_counted(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.epoch(EpochRecord(1, 10, 0.0, 0.0, {"val/loss": 0.5}, 1e-3, 1.0, 8, 8))
        writer.event("interrupted", "", step=15, epoch=2)
    assert "<dt>epochs</dt><dd>1</dd>" in Path(engine.report(tmp_path).path).read_text()


def test_the_head_of_the_page_says_how_many_ranks_there_were(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "two")
    assert "<dt>ranks</dt><dd>1</dd>" in Path(engine.report(copy).path).read_text()
    (first,) = copy.rglob("rank0*.status")
    shutil.copy(first, first.with_name(first.name.replace("rank0", "rank1")))
    assert "<dt>ranks</dt><dd>2</dd>" in Path(engine.report(copy).path).read_text()
