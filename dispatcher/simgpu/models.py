"""The GPU models that can be simulated, with the numbers of their power model.

Shape of the A100s: P(f) = p0 + (Pd - p0) (k f^3 + (1 - k) f) and speed 1 / (mu + (1 - mu) / f), fitted to public sweeps of
power caps on A100-class cards: compute-bound training p0 = .18 TDP, k = .48, mu = .17; fine-tuning and inference
p0 = .25 TDP, k = .99, mu = .27; a busy GPU draws Pd = .95 TDP. No such sweep of an H100 is public: the H100s here have the
A100's shape at their own limits, which says nothing about real ones. Draws without work are round figures.
"""

from dataclasses import dataclass, replace

from dispatcher.simgpu.layout import GpuRecord

GIB = 1 << 30


@dataclass(frozen=True)
class Model:
    """One GPU model; powers in W, clocks in MHz, ``static_share`` and ``draw_share`` as parts of the default limit."""

    name: str
    memory_gib: int
    architecture: int
    default_w: float
    min_w: float
    max_w: float
    idle_w: float
    execution_idle_w: float
    static_share: float
    cubic_share: float
    fixed_share: float
    min_mhz: int
    max_mhz: int
    memory_mhz: int
    draw_share: float = 0.95
    power_is_average: bool = True
    module_extra_w: float = 0.0

    def record(self, uuid: str) -> GpuRecord:
        """A GPU of this model that has just been switched on."""
        return GpuRecord(
            name=self.name.encode(),
            uuid=uuid.encode(),
            architecture=self.architecture,
            memory_bytes=self.memory_gib * GIB,
            min_mw=round(self.min_w * 1000),
            max_mw=round(self.max_w * 1000),
            default_mw=round(self.default_w * 1000),
            idle_w=self.idle_w,
            execution_idle_w=self.execution_idle_w,
            static_w=self.static_share * self.default_w,
            draw_w=self.draw_share * self.default_w,
            cubic_share=self.cubic_share,
            fixed_share=self.fixed_share,
            module_extra_w=self.module_extra_w,
            min_mhz=self.min_mhz,
            max_mhz=self.max_mhz,
            memory_mhz=self.memory_mhz,
            ambient_c=28.0,
            c_per_w=45.0 / self.default_w,
            power_is_average=int(self.power_is_average),
            energy_factor=1.0,
        )


AMPERE, HOPPER = 7, 9
_A100 = Model(
    name="NVIDIA A100-SXM4-80GB (simulated)",
    memory_gib=80,
    architecture=AMPERE,
    default_w=400.0,
    min_w=100.0,
    max_w=400.0,
    idle_w=55.0,
    execution_idle_w=90.0,
    static_share=0.18,
    cubic_share=0.48,
    fixed_share=0.17,
    min_mhz=210,
    max_mhz=1410,
    memory_mhz=1593,
    power_is_average=False,  # this chip shows the power of the moment, the later ones the mean of about a second
)
_H100 = replace(
    _A100,
    name="NVIDIA H100 80GB HBM3 (simulated)",
    architecture=HOPPER,
    default_w=700.0,
    min_w=200.0,
    max_w=700.0,
    idle_w=70.0,
    execution_idle_w=125.0,
    min_mhz=345,
    max_mhz=1980,
    memory_mhz=2619,
    power_is_average=True,
)
MODELS: dict[str, Model] = {
    "a100": _A100,
    "a100-inference": replace(_A100, static_share=0.25, cubic_share=0.99, fixed_share=0.27),
    "h100": _H100,
    # the power and energy shown are the module's, which holds a processor too
    "gh200": replace(_H100, name="NVIDIA GH200 480GB (simulated)", module_extra_w=90.0),
}
