"""The schedules that tests of asynchronous instructions run in."""

from __future__ import annotations

import simulator

SCHEDULES = [
    simulator.options("eager"),
    simulator.options("lazy"),
    *(simulator.options("random", seed=seed, budget=5 * seed) for seed in range(1, 4)),
]
SCHEDULE_NAMES = ["eager", "lazy", "random1", "random2", "random3"]
