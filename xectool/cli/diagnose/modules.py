"""``xectool diagnose modules``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from xectool.cli.options import DeviceOption, JsonOption, SetOption, config_or_run_word
from xectool.cli.render import Output, table, verdict_box

if TYPE_CHECKING:
    from rich.console import Console

    from xectool.engine.diagnose.module_costs import ModulesResult

TOP = 10


def modules(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG|RUN", callback=config_or_run_word, help="YAML configuration or run directory."),
    ],
    set_: SetOption = None,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps.")] = 5,
    warmup: Annotated[int, typer.Option(min=0, help="Steps before them.")] = 2,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Show the slowest and largest modules of a network, forward and backward."""
    from xectool import engine

    result = engine.diagnose.modules(config, overrides=set_ or (), steps=steps, warmup=warmup, device=device)
    Output("diagnose modules", json).result(result.as_dict(), human=lambda screen: _show(screen, result))


def _show(screen: Console, result: ModulesResult) -> None:
    columns = ["module", "forward ms", "backward ms", "share %", "kept MB"]
    rows: list[list[object]] = [
        [m.module or "(network)", 1e3 * m.forward_s, 1e3 * m.backward_s, 100 * m.share, m.activation_bytes / 1e6]
        for m in result.modules[:TOP]
    ]
    screen.print(table(f"slowest {len(rows)} of {len(result.modules)} modules, without those in them", columns, rows))
    sizes = {m.module: m.activation_bytes / 1e6 for m in result.modules}
    kept: list[list[object]] = [[name or "(network)", sizes[name]] for name in result.largest[:TOP]]
    screen.print(table("most kept for the backward pass", ["module", "MB"], kept))
    slowest = result.modules[0]
    screen.print(
        verdict_box(
            f"{slowest.module or 'the network itself'} takes {100 * slowest.share:.0f} % of forward and backward",
            [
                f"{result.events} events: {1e3 * result.step_s:.4g} ms forward and backward (median of {result.steps} "
                f"after {result.warmup}), {result.device}, {result.precision}",
                f"with clocks {1e3 * result.measured_step_s:.4g} ms: {abs(100 * result.overhead):.0f} % "
                + ("more" if result.overhead >= 0 else "less, which is the noise of the machine"),
                f"{result.activation_bytes / 1e6:.4g} MB kept for the backward pass",
                *result.notes,
            ],
            "",
            good=True,
        )
    )
