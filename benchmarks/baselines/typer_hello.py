"""The smallest Typer program."""

import typer

app = typer.Typer()


@app.command()
def hello(name: str) -> None:
    """Greet."""
    typer.echo(f"Hello {name}")


@app.command()
def goodbye(name: str) -> None:
    """Part."""
    typer.echo(f"Goodbye {name}")


if __name__ == "__main__":
    app()
