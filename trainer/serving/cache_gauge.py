"""How full an engine's KV cache is, as its scheduler tells with each of its steps."""

from typing import Any


class CacheGauge:
    """Keeps the newest share of the cache that is in use; blocks that only wait to be found again are free."""

    def __init__(self) -> None:
        self.usage: float | None = None
        """None until the engine has taken a step."""

    def logger(self, vllm_config: Any, engine_index: int = 0) -> Any:
        """A factory of vLLM's stat loggers, for `AsyncLLM`."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        gauge = self

        class Logger(StatLoggerBase):
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
                if scheduler_stats is not None:
                    gauge.usage = float(scheduler_stats.kv_cache_usage)

            def log_engine_initialized(self) -> None:
                pass

        return Logger(vllm_config, engine_index)
