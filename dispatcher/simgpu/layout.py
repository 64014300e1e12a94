"""The state of one simulated GPU as it lies in the state file: a mirror of ``Gpu`` and ``Process`` in driver.c.

Members have the same order and meaning there; all are 8 bytes or a multiple, and the driver is asked for its size at opening.
"""

import ctypes

MAX_GPUS = 16
MAX_PROCESSES = 32
#: What stands in ``gpu_instance`` and ``compute_instance`` where the GPU is not split.
NO_INSTANCE = 0xFFFFFFFF

_u64, _f64 = ctypes.c_uint64, ctypes.c_double


class ProcessRecord(ctypes.Structure):
    """One attachment of a process to a GPU."""

    _fields_ = [
        ("pid", _u64),
        ("start_ticks", _u64),
        ("serial", _u64),
        ("intensity", _f64),
        ("memory_bytes", _u64),
        ("done_s", _f64),
        ("target_s", _f64),
        ("active_until_ns", _u64),
        ("gpu_instance", _u64),
        ("compute_instance", _u64),
    ]


class GpuRecord(ctypes.Structure):
    """One GPU: what it is, its limits, its power model, what has accrued, its faults, its processes."""

    _fields_ = [
        ("name", ctypes.c_char * 64),
        ("uuid", ctypes.c_char * 64),
        ("architecture", _u64),
        ("memory_bytes", _u64),
        ("min_mw", _u64),
        ("max_mw", _u64),
        ("default_mw", _u64),
        ("limit_mw", _u64),
        ("pending_mw", _u64),
        ("pending_at_ns", _u64),
        ("lag_ns", _u64),
        ("limit_calls", _u64),
        ("outside_mw", _u64),
        ("rival_mw", _u64),
        ("rival_period_ns", _u64),
        ("rival_next_ns", _u64),
        ("idle_w", _f64),
        ("execution_idle_w", _f64),
        ("static_w", _f64),
        ("draw_w", _f64),
        ("cubic_share", _f64),
        ("fixed_share", _f64),
        ("module_extra_w", _f64),
        ("min_mhz", _u64),
        ("max_mhz", _u64),
        ("memory_mhz", _u64),
        ("lock_min_mhz", _u64),
        ("lock_max_mhz", _u64),
        ("memory_lock_min_mhz", _u64),
        ("memory_lock_max_mhz", _u64),
        ("ambient_c", _f64),
        ("c_per_w", _f64),
        ("temperature_c", _f64),
        ("energy_mj", _f64),
        ("average_w", _f64),
        ("capped_s", _f64),
        ("work_done_s", _f64),
        ("updated_ns", _u64),
        ("boots", _u64),
        ("persistence", _u64),
        ("mig", _u64),
        ("mig_pending", _u64),
        ("power_is_average", _u64),
        ("no_permission", _u64),
        ("lost", _u64),
        ("fail_every", _u64),
        ("fail_code", _u64),
        ("slow_ms", _u64),
        ("missing", _u64),
        ("energy_mode", _u64),
        ("energy_factor", _f64),
        ("energy_at_fault_mj", _f64),
        ("noise", _f64),
        ("noise_seed", _u64),
        ("process_count", _u64),
        ("processes", ProcessRecord * MAX_PROCESSES),
    ]
