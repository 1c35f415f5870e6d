"""Names of a `.env` file that mean something together: nodes, the window, the batch, KL, the correction, the filter."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from flows.configuration.dotenv_file import Given
from flows.configuration.dotenv_values import Reader, Untranslatable, from_folder, integer, number, one_of, switch, text
from tasks.rollout_ledger import Mode

Settings = dict[str, tuple[Any, int]]


class Compound:
    """Names whose meaning depends on others. Each step gives settings, with the line of the name behind them."""

    def __init__(self, names: Mapping[str, Given], folder: Path) -> None:
        self._names, self._folder = names, folder

    def steps(self) -> list[Callable[[], Settings]]:
        return [
            self._profiles,
            self._topology,
            self._window,
            self._batch,
            self._length,
            self._evaluation,
            self._kl,
            self._correction,
            self._filter,
            self._routing,
        ]

    def _read(self, name: str, read: Reader, default: Any = None) -> Any:
        if name not in self._names:
            return default
        try:
            return read(self._names[name].value)
        except Untranslatable as error:
            raise Untranslatable(f"{name}: {error}") from error

    def _line(self, *names: str) -> int:
        return next((self._names[name].line for name in names if name in self._names), 0)

    def _profiles(self) -> Settings:
        settings: Settings = {}
        mode = self._read("TRAINING_MODE", one_of(**{mode: mode for mode in get_args(Mode)}))
        if mode is not None:
            settings["profiles.mode"] = (mode, self._line("TRAINING_MODE"))
        settings |= self._staleness(mode in (None, "sync"))
        engine = self._read("MODEL_ENGINE", one_of(fsdp="gpu", veomni="gpu", gpu="gpu", cpu="cpu"))
        if engine is not None:
            settings["profiles.engine"] = (engine, self._line("MODEL_ENGINE"))
        return settings

    def _staleness(self, sync: bool) -> Settings:
        bound, partial = self._read("STALENESS", number), self._read("PARTIAL_ROLLOUT", switch)
        if sync and (bound or partial):
            raise Untranslatable(
                f"{'STALENESS' if bound else 'PARTIAL_ROLLOUT'}: with TRAINING_MODE=sync every token is of the newest "
                "weights; set TRAINING_MODE to async or one_step_off, or leave it out"
            )
        if not sync and partial is False:
            raise Untranslatable(
                "PARTIAL_ROLLOUT: 'False' cannot be had: a sync freezes generations, and they go on under the new "
                "weights; leave it out"
            )
        if bound is None or sync:
            return {}
        if bound < 0 or bound != int(bound):
            raise Untranslatable(f"STALENESS: {bound:g} is no number of weight versions; give a whole one")
        return {"staleness.max_staleness": (int(bound), self._line("STALENESS"))}

    def _topology(self) -> Settings:
        train, rollout = self._read("N_NODES_TRAIN", integer), self._read("N_NODES_ROLLOUT", integer)
        nodes, each = self._read("NNODES", integer), self._read("NGPUS_PER_NODE", integer, 8)
        sequence_parallel = self._read("SP_SIZE", integer, 1)
        if nodes is not None and train is not None and rollout is not None and nodes != train + rollout:
            raise Untranslatable(
                f"NNODES is {nodes}, but N_NODES_TRAIN {train} and N_NODES_ROLLOUT {rollout} make {train + rollout}; "
                "correct one of the three"
            )
        if train is not None and sequence_parallel > 0 and train * each % sequence_parallel:
            raise Untranslatable(
                f"SP_SIZE is {sequence_parallel}, which does not divide the {train * each} GPUs of the learner "
                "(N_NODES_TRAIN x NGPUS_PER_NODE); choose a divisor"
            )
        if sequence_parallel < 1:
            raise Untranslatable(f"SP_SIZE is {sequence_parallel}; set it to the ranks that share a sequence, or to 1")
        shares: Settings = {}
        if sequence_parallel > 1:
            shares["learner.sp_size"] = (sequence_parallel, self._line("SP_SIZE"))
        if train is None and rollout is None:
            if nodes is not None:
                raise Untranslatable(f"NNODES is {nodes}; say which: set N_NODES_TRAIN and N_NODES_ROLLOUT as well")
            return shares
        if not train or rollout is None:
            raise Untranslatable(
                f"N_NODES_TRAIN is {train} and N_NODES_ROLLOUT {rollout}: give the learner a node, and the engine its "
                "own, or 0 to share the learner's"
            )
        if each == 0:
            raise Untranslatable("NGPUS_PER_NODE is 0; for CPUs leave the nodes out and set MODEL_ENGINE=cpu")
        tensor_parallel = self._read("GEN_TP", integer, 1)
        learner = shares | {
            "learner.ranks": (train * each, self._line("N_NODES_TRAIN")),
            "learner.nodes": (train, self._line("N_NODES_TRAIN")),
            "learner.gpus_per_rank": (1, self._line("NGPUS_PER_NODE", "N_NODES_TRAIN")),
        }
        if not rollout:
            if tensor_parallel != 1:
                raise Untranslatable(
                    f"GEN_TP is {tensor_parallel}, and N_NODES_ROLLOUT 0: replicas that share the learner's GPUs hold "
                    "one each; set GEN_TP to 1, or give the engine nodes"
                )
            shared = self._line("N_NODES_ROLLOUT")
            return learner | {"serving.colocated": (True, shared), "serving.replicas": (train * each, shared)}
        if tensor_parallel < 1 or each * rollout % tensor_parallel or tensor_parallel > each:
            raise Untranslatable(
                f"GEN_TP is {tensor_parallel}, which does not divide the {each} GPUs of a node into replicas; "
                "choose a divisor"
            )
        return learner | {"serving.replicas": (rollout * each // tensor_parallel, self._line("N_NODES_ROLLOUT"))}

    def _window(self) -> Settings:
        prompt, answer = self._read("MAX_PROMPT", integer), self._read("MAX_RESP", integer)
        if (prompt is None) != (answer is None):
            raise Untranslatable("MAX_PROMPT and MAX_RESP make the window together; set both")
        return {} if prompt is None else {"serving.window": (prompt + answer, self._line("MAX_RESP"))}

    def _batch(self) -> Settings:
        """A mini-batch counts tasks there and trials here; one as large as the batch is the default here."""
        tasks, mini = self._read("TRAIN_BSZ", integer), self._read("TRAIN_MINI_BSZ", integer)
        settings: Settings = {}
        if tasks is not None:
            settings["rollout.tasks_per_step"] = (tasks, self._line("TRAIN_BSZ"))
        if mini is None or mini == (tasks if tasks is not None else 64):
            return settings
        attempts = self._read("N_RESP", integer, 8)
        return settings | {"learner.mini_batch_size": (mini * attempts, self._line("TRAIN_MINI_BSZ"))}

    def _length(self) -> Settings:
        """Steps from epochs, for which the index must be readable: an epoch there is the index once through."""
        epochs = self._read("TOTAL_EPOCHS", integer)
        if epochs is None or "TOTAL_STEPS" in self._names:
            return {}
        index = self._read("TRAIN_FILES", text)
        path = Path(from_folder(index, self._folder)).expanduser() if index is not None else None
        if path is None or not path.is_file():
            raise Untranslatable(
                f"TOTAL_EPOCHS is {epochs}, and an epoch is as long as the index: {index!r} cannot be read; set "
                "TOTAL_STEPS instead"
            )
        import pyarrow.parquet as pq

        rows = pq.read_metadata(path).num_rows
        steps = epochs * (rows // self._read("TRAIN_BSZ", integer, 64))
        if steps < 1:
            raise Untranslatable(f"TOTAL_EPOCHS is {epochs}, but the {rows} tasks of {index} do not fill one step")
        return {"schedule.total_steps": (steps, self._line("TOTAL_EPOCHS"))}

    def _evaluation(self) -> Settings:
        settings: Settings = {}
        frequency = self._read("TRAINER_TEST_FREQ", integer)
        if frequency is not None:
            settings["schedule.test_freq"] = (max(frequency, 0), self._line("TRAINER_TEST_FREQ"))
        if self._read("VAL_DO_SAMPLE", switch, True) is False:
            settings["evaluation.temperature"] = (0.0, self._line("VAL_DO_SAMPLE"))
        elif "VAL_TEMPERATURE" in self._names:
            temperature = self._read("VAL_TEMPERATURE", number)
            settings["evaluation.temperature"] = (temperature, self._line("VAL_TEMPERATURE"))
        return settings

    def _kl(self) -> Settings:
        in_loss, in_reward = self._read("USE_KL_LOSS", switch), self._read("USE_KL_IN_REWARD", switch)
        if in_loss is None and in_reward is None:
            return {}
        place = {(True, True): "both", (True, False): "loss", (False, True): "reward", (False, False): "none"}[
            (bool(in_loss), bool(in_reward))
        ]
        settings: Settings = {"algorithm.kl.place": (place, self._line("USE_KL_LOSS", "USE_KL_IN_REWARD"))}
        name = "KL_LOSS_COEF" if in_loss else "KL_COEF"
        coefficient = self._read(name, number)
        if place == "both" and coefficient != self._read("KL_COEF", number, coefficient):
            raise Untranslatable(
                "KL_LOSS_COEF and KL_COEF differ, and here both places share one weight; make them equal"
            )
        if place == "none" or coefficient is None:
            return settings
        if coefficient == 0:
            return {"algorithm.kl.place": ("none", self._line(name))}
        settings["algorithm.kl.coef"] = (coefficient, self._line(name))
        kind = self._read("KL_LOSS_TYPE", text)
        return settings if kind is None else settings | {"algorithm.kl.estimator": (kind, self._line("KL_LOSS_TYPE"))}

    def _correction(self) -> Settings:
        bypass = self._read("ROLLOUT_CORRECTION_BYPASS", switch, False)
        if bypass:
            return {"algorithm.rollout_correction.mode": ("bypass", self._line("ROLLOUT_CORRECTION_BYPASS"))}
        weights = self._read("ROLLOUT_IS", one_of(null="none", none="none", token="token", sequence="sequence"))
        if weights is None:
            return {}
        return {"algorithm.rollout_correction.weights": (weights, self._line("ROLLOUT_IS"))}

    def _routing(self) -> Settings:
        replay = self._read("ENABLE_R3", switch)
        if replay is None:
            return {}
        line = self._line("ENABLE_R3")
        return {"learner.moe.replay": (replay, line), "serving.capture_routing": (replay, line)}

    def _filter(self) -> Settings:
        reasons = self._read("TRAJ_FILTER_DROP_REASONS", text)
        if self._read("TRAJ_FILTER_ENABLE", switch) is not True:
            return {}
        outcomes = {
            "timeout": "agent_timeout",
            "overlong": "overlong",
            "max_turns_reached": "max_turns",
            "max_turns": "max_turns",
            "agent_completed": "completed",
            "env_setup_failed": "",  # an infra_error, which is left out always
        }
        words = [word.strip(" []'\"") for word in reasons.split(",")] if reasons else ["timeout"]
        if unknown := [word for word in words if word not in outcomes]:
            raise Untranslatable(
                f"TRAJ_FILTER_DROP_REASONS: {unknown[0]!r} is no reason; there are {', '.join(sorted(outcomes))}"
            )
        dropped = {outcomes[word] for word in words} - {""}
        if self._read("TRAJ_FILTER_FILTER_OVERLONG", switch, False):
            dropped.add("overlong")
        return {"filter.drop_outcomes": (sorted(dropped), self._line("TRAJ_FILTER_DROP_REASONS", "TRAJ_FILTER_ENABLE"))}
