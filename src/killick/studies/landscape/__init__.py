"""Fig. 4: does masking find wider optima? Accuracy over a plane through the weights."""

from dataclasses import dataclass

from killick.errors import OptionError
from killick.settings import setting
from killick.studies.findings import Findings, Results, compare_values, format_mean, make_table
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, compare_protocols


@dataclass(frozen=True)
class Options:
    """The plane, and the images at each of its points."""

    protocols: list[str] = setting(list(PROTOCOLS), "arms whose weights are varied")
    points: int = setting(
        51, "of a side of the plane; odd, with the weights in the center", least=3
    )
    span: float = setting(1.0, "half a side, in norms of the weights", above=0)
    directions: int = setting(0, "seed of the directions, the same for all arms", least=0)
    draws: int = setting(1, "pairs of directions, a plane each; radii are averaged", least=1)
    batchnorm: list[str] = setting(
        ["kept", "settled"],
        "statistics kept as trained, or re-estimated at every point",
        among=("kept", "settled"),
    )
    statistics: int = setting(1000, "training images that they are re-estimated on", least=2)
    corruptions: list[str] | None = setting(None, "of the test images; none: the 19 common ones")
    severities: list[int] = setting([1, 2, 3, 4, 5], "of each corruption", least=1, most=5)
    images: int | None = setting(
        9500, "corrupted, divided among the corruptions; none: all of each", least=1
    )

    def __post_init__(self) -> None:
        if self.points % 2 == 0:
            raise OptionError(f"--points must be odd, found {self.points}.")


def find(results: Results) -> Findings:
    """A map and radii for each arm, with BatchNorm kept and settled."""
    from killick.studies.landscape.maps import draw_maps
    from killick.studies.landscape.plane import ACCURACY, RADII, arrange

    span, protocols = results.plan.options.span, results.levels("protocol")
    figures, rows, headline = [], [], []
    for batchnorm in results.plan.options.batchnorm:
        grids = {}
        widths = {p: results.by_seed(RADII[0], batchnorm=batchnorm, protocol=p) for p in protocols}
        for protocol in protocols:
            known = {"batchnorm": batchnorm, "protocol": protocol}
            grids[protocol] = arrange(results.records(**known))
            row = {
                "arm": protocol,
                "BatchNorm": batchnorm,
                "center, %": format_mean(results.by_seed(ACCURACY, x=0.0, y=0.0, **known)),
            }
            for name in RADII:
                text = format_mean(results.by_seed(name, **known), 1, 2)
                cut = results.records(metric=name, cut=1, **known)
                row[name.replace("_", " ")] = f"at least {text}" if cut else text
            headline.append(f"{protocol}, BatchNorm {batchnorm} {row['radius 10 points']}")
            gap = compare_values(widths[protocol], widths.get("standard", {}), 1, 2)
            row["10 points − standard"] = gap
            spread = results.spread_over("draw", RADII[0], **known)
            row["± over directions"] = format_mean(spread, 1, 2)
            rows.append(row)
        figures.append(draw_maps(f"study-landscape-{batchnorm}", grids, span))
    table = make_table(
        "study-landscape-table",
        "Width of the optimum",
        rows,
        "Radius of a disc with the area of the region, in norms of the weights: within 10 points of the"
        " center, within 90 % of its accuracy above chance, within half of it.",
    )
    return Findings(
        f"Radius within 10 points of the center: {'; '.join(headline)}.",
        tuple(figures),
        (table,),
    )


STUDY = Study(
    name="landscape",
    item="Fig. 4",
    title="Does masking find wider optima?",
    about="accuracy over a plane through the weights, and how wide the optimum in it is",
    options=Options,
    varies=("protocols",),
    arms=compare_protocols,
    findings=find,
    measure="killick.studies.landscape.plane:measure",
    sizes={
        "small": Size(
            # Radii of so small a network differ between directions as much as between seeds.
            options={"points": 9, "draws": 3, "images": 285, "statistics": 150},
            evaluation={"limit": 200},
        ),
        "smoke": Size(
            options={
                "points": 3,
                "images": 60,
                "statistics": 50,
                "corruptions": ["fog", "contrast"],
            }
        ),
    },
    notes=(
        "The paper does not state whether BatchNorm statistics follow the weights. The code of Li et"
        " al. (2018) keeps them; both are measured here.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
