"""The policy itself: whether it is there, can be trained and served, and agrees with its own tokenizer."""

from collections.abc import Iterator

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal, ok, unset, warn
from flows.preflight.model_facts import ModelFacts
from flows.preflight.of_model import of_model
from flows.preflight.registry import check
from harness.proxy.codec import ChatCodec, CodecError
from trainer.model import BUILTIN, ModelError


@check("model")
def model(facts: Facts) -> Iterator[Finding]:
    """A folder with config, weights, tokenizer and chat template."""
    path = facts.config.model.path
    if not facts.is_set("model.path"):
        yield unset("model.path", path, "the small policy that comes with the package is trained", "set it to your own")
    try:
        found = facts.model
    except ModelError as error:
        yield fatal("model.path", path, str(error).removeprefix("model.path: "), "correct it, or mend the folder")
        return
    if found is not None:
        yield ok("model.path", path, f"{found.parameters / 1e6:,.0f} M parameters in {len(found.tensors)} tensors")
    elif path == BUILTIN:
        yield warn(
            "model.path",
            path,
            "is unpacked when a run starts, so that nothing of it could be checked",
            "run `testgrad quickstart` once, and check again",
        )
    else:
        yield warn(
            "model.path",
            path,
            "is no folder, and is fetched from the hub when a run starts: nothing of it could be checked",
            "fetch it before (hf download), and give the folder",
        )


@check("experts")
@of_model
def experts(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """A mixture of experts is of a known family, its routing replayed; quantised weights cannot be trained."""
    replay = facts.config.learner.moe.replay
    if model.is_mixture:
        yield from _mixture(facts, model)
    elif replay:
        yield fatal(
            "learner.moe.replay",
            replay,
            "needs a mixture of experts, and the model is dense, by its config.json",
            "set learner.moe.replay: false and serving.capture_routing: false",
        )
    else:
        yield ok("model.path", facts.config.model.path, "is dense, by its config.json: no experts to replay")
    if model.quantised:
        yield fatal(
            "model.path",
            facts.config.model.path,
            "has quantised weights, which have no gradient",
            "take the full weights",
        )


def _mixture(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    from trainer.learner.moe.mixtures import MIXTURES

    path, config = facts.config.model.path, facts.config
    kind = str(model.text_config.get("model_type", ""))
    if kind not in MIXTURES:
        yield fatal(
            "model.path",
            path,
            f"is a mixture of experts, by its config.json, of type {kind!r}: its experts cannot be synced or exported "
            f"(known are {', '.join(sorted(MIXTURES))})",
            "take a model of one of these types, or add the type to trainer.learner.moe.mixtures.MIXTURES in a plugin",
        )
    elif not config.learner.moe.replay:
        yield warn(
            "learner.moe.replay",
            False,
            "leaves the choice of experts to the learner's own router: wherever two are nearly tied it takes another "
            "than the engine did, and log-probs disagree",
            "on GPUs set learner.moe.replay: true and serving.capture_routing: true",
        )
    elif not config.learner.gpus_per_rank:
        yield fatal(
            "serving.capture_routing",
            config.serving.capture_routing,
            "needs GPUs: vLLM's CPU engine does not tell which experts it chose",
            "set learner.gpus_per_rank: 1, or learner.moe.replay: false and serving.capture_routing: false",
        )
    else:
        yield ok("learner.moe.replay", True, "the engine's choice of experts is replayed")


@check("rows")
@of_model
def rows(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """The learner computes rows of several rollouts as the engine computes each of them."""
    from trainer.learner.unsupported import unsupported

    path, text, learner = facts.config.model.path, model.text_config, facts.config.learner
    reason = unsupported(text)
    if reason is not None:
        yield fatal(
            "model.path", path, reason, "take a model whose layers all attend, and that leaves logits as they are"
        )
        return
    kind, original = model.rope
    if kind in ("dynamic", "longrope") and original is not None and facts.config.serving.window > original:
        yield fatal(
            "serving.window",
            facts.config.serving.window,
            f"is more than {original} tokens, beyond which the model's rotary embedding ({kind}) depends on how long a "
            "sequence is: the learner's rows are not as long as the engine's",
            f"lower it to {original}, or take rope scaling of another kind (yarn)",
        )
    sliding = model.number("sliding_window") if text.get("use_sliding_window", True) else None
    if sliding is None:
        yield ok("model.path", path, "its layers attend to all of a rollout, by its config.json")
    elif facts.config.serving.window > sliding:
        yield fatal(
            "serving.window",
            facts.config.serving.window,
            f"is more than the {sliding} tokens that layers of the model look back over, which is not computed",
            f"lower it to {sliding}, or take a model without sliding_window",
        )
    elif learner.row_tokens > sliding:
        yield fatal(
            "learner.micro_batch_tokens",
            learner.micro_batch_tokens,
            f"makes rows of {learner.row_tokens} tokens, and layers of the model look back over {sliding}",
            f"lower it to {sliding // learner.sp_size}",
        )
    else:
        yield ok("model.path", path, f"no row is longer than the {sliding} tokens that its layers look back over")


@check("window")
@of_model
def window(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """The window within what the model is made for, and room in it for a conversation."""
    serving, config = facts.config.serving, facts.config
    if not facts.is_set("serving.window"):
        yield unset(
            "serving.window", serving.window, "prompt and answers of a trial must fit it", "set it to what trials need"
        )
    if model.positions is None:
        yield warn(
            "serving.window",
            serving.window,
            "config.json tells no max_position_embeddings",
            "look it up for this model",
        )
    elif serving.window > model.positions:
        yield fatal(
            "serving.window",
            serving.window,
            f"is more than the {model.positions} positions of the model",
            f"lower it to {model.positions}, or extend the model by rope scaling in its config.json",
        )
    else:
        yield ok("serving.window", serving.window, f"within the {model.positions} positions of the model")
    if not facts.is_set("rollout.max_tokens_per_turn"):
        yield unset(
            "rollout.max_tokens_per_turn",
            config.rollout.max_tokens_per_turn,
            "longer answers are cut and the trial goes on with the rest",
            "set it to the longest answer that you want",
        )


@check("tokenizer")
@of_model
def tokenizer(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """Tokenizer, chat template and generation config mean the same tokens."""
    words, vocabulary = model.tokenizer, model.number("vocab_size")
    if vocabulary is None:
        yield warn("model.path", facts.config.model.path, "config.json tells no vocab_size", "make sure that it fits")
    elif len(words) > vocabulary:
        yield fatal(
            "model.path",
            facts.config.model.path,
            f"its tokenizer has {len(words)} tokens, and the model {vocabulary} rows: "
            "some prompts would read beyond them",
            "take the tokenizer that belongs to the weights",
        )
    else:
        yield ok("model.path", facts.config.model.path, f"{len(words)} tokens for {vocabulary} rows of the model")
    named = model.generation.get("eos_token_id", model.text_config.get("eos_token_id"))
    ids = named if isinstance(named, list) else [named]
    if words.eos_token_id is None:
        yield fatal(
            "model.path",
            facts.config.model.path,
            "its tokenizer names no eos_token, so that nothing ends an answer",
            "set eos_token in tokenizer_config.json",
        )
    elif named is not None and words.eos_token_id not in ids:
        yield warn(
            "model.path",
            facts.config.model.path,
            f"the tokenizer ends answers with id {words.eos_token_id}, the generation "
            f"config with {', '.join(map(str, ids))}",
            "make eos_token_id the same in all three files",
        )
    if bent := sorted(set(model.generation) & {"top_k", "top_p", "temperature", "repetition_penalty", "min_p"}):
        yield ok(
            "model.path",
            facts.config.model.path,
            f"generation_config.json has {', '.join(bent)}, which the engine ignores: "
            "what is sampled is what is learned",
        )


@check("chat-template")
@of_model
def chat_template(facts: Facts, model: ModelFacts) -> Iterator[Finding]:
    """The template carries a conversation of several turns, and ends an answer where the engine does."""
    try:
        codec = ChatCodec(model.tokenizer)
        codec.encode_prompt([{"role": "user", "content": "?"}])
        tail = codec.encode_delta({"role": "assistant", "content": "!"}, [{"role": "user", "content": "?"}], [])
    except CodecError as error:
        turns = max(scaffold.max_turns for scaffold in facts.scaffolds)
        mend = "take another model, or mend its chat_template.jinja"
        if turns > 1:
            yield fatal("model.path", facts.config.model.path, str(error), mend)
        else:
            yield warn("model.path", facts.config.model.path, f"{error}; trials have one turn, and do without", mend)
        return
    end = tail[0] if tail else None
    if end is not None and end not in model.end_ids:
        shown = model.tokenizer.decode([end])
        yield fatal(
            "model.path",
            facts.config.model.path,
            f"its chat template ends a turn with {shown!r} (id {end}), where the "
            f"engine does not end an answer (it does at {sorted(model.end_ids)}): each would go on to its last token",
            "add that id to eos_token_id in generation_config.json",
        )
    else:
        yield ok(
            "model.path",
            facts.config.model.path,
            "its chat template carries a conversation, and ends turns as the engine",
        )
