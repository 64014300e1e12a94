"""A picture of cost against carbon for bench_backtest: build/backtest_front.svg and .png."""

from collections.abc import Sequence
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"
Point = tuple[str, float, float]


def draw(ours: Sequence[Point], others: Sequence[Point], title: str) -> None:
    """Points are (label, cost saved %, carbon saved %); ``ours`` are joined by a line in the order of their cost."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    line = sorted(ours, key=lambda point: point[1])
    axes.plot([x for _, x, _ in line], [y for _, _, y in line], "o-", color="#0b6e4f", label="gridshift over the carbon price")
    plain = [point for point in others if not point[0].endswith(":price")]
    priced = [point for point in others if point[0].endswith(":price")]
    for points, mark, name in ((plain, "s", "published, by carbon"), (priced, "^", "published, by price")):
        axes.plot(
            [x for _, x, _ in points],
            [y for _, _, y in points],
            mark,
            color="#8a5a00" if mark == "s" else "#6b4fa0",
            label=name,
        )
    for text, x, y in [*ours, *others]:
        short = text.removeprefix("gridshift ").removesuffix(":price")
        axes.annotate(short, (x, y), xytext=(6, -4), textcoords="offset points", fontsize=8)
    axes.set_xlabel("cost saved against run-now, %")
    axes.set_ylabel("carbon saved against run-now, %")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    BUILD.mkdir(exist_ok=True)
    for kind in ("svg", "png"):
        figure.savefig(BUILD / f"backtest_front.{kind}", dpi=130)
    plt.close(figure)
