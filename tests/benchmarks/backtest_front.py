"""A picture of cost against carbon for bench_backtest: build/backtest_front.svg and .png."""

from collections.abc import Sequence
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"
Point = tuple[str, float, float]


def draw(ours: Sequence[Point], others: Sequence[Point], title: str) -> None:
    """Points are (label, cost saved %, carbon saved %); ``ours`` are joined by a line in their order."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    axes.plot([x for _, x, _ in ours], [y for _, _, y in ours], "o-", color="#0b6e4f", label="gridshift over the carbon price")
    plain = [point for point in others if not point[0].endswith(":price")]
    priced = [point for point in others if point[0].endswith(":price")]
    kinds = ((plain, "s", "#8a5a00", "published, by carbon"), (priced, "^", "#6b4fa0", "published, by price"))
    for points, mark, color, name in kinds:
        axes.plot([x for _, x, _ in points], [y for _, _, y in points], mark, color=color, label=name)
    for number, (text, x, y) in enumerate(ours):
        # neighbours lie close together: each a line higher than the one before
        aside = (24, 9 * number - 26)
        axes.annotate(
            text.removeprefix("gridshift "), (x, y), xytext=aside, textcoords="offset points", fontsize=8, color="#0b6e4f",
            arrowprops={"arrowstyle": "-", "color": "#9bc4b5", "linewidth": 0.6},
        )  # fmt: skip
    for text, x, y in others:
        axes.annotate(text.removesuffix(":price"), (x, y), xytext=(-6, -12), textcoords="offset points", fontsize=8, ha="right")
    axes.margins(x=0.18, y=0.15)
    axes.set_xlabel("cost saved against run-now (which is at 0, 0), %")
    axes.set_ylabel("carbon saved against run-now, %")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    BUILD.mkdir(exist_ok=True)
    for kind in ("svg", "png"):
        figure.savefig(BUILD / f"backtest_front.{kind}", dpi=130)
    plt.close(figure)
