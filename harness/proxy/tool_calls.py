"""Reads tool calls and thinking out of what the policy sampled, with vLLM's own parsers."""

import ast
import importlib.util
import json
import logging
import re
import secrets
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harness import syntax
from harness.proxy.conversation import Tool, ToolCall

NAME = re.compile(r"[A-Za-z_][\w.:/-]{0,127}")
"""A tool's name; what a parser takes for one but is none, such as a bracket, is no call."""

_END_OF_TURN = frozenset(
    (
        *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "</s>"),
        *("<end_of_turn>", "<turn|>", "<｜end▁of▁sentence｜>", "<|user|>", "<|observation|>"),
    )
)
"""Tokens that end an answer and are no part of it, beside the tokenizer's own."""

_BEGINS_A_CALL = re.compile(
    r"TOOL_(START|CALLS|TOKEN|STRING|SECTION_START|REQUESTS?_START)|(FUNC|INVOKE)_PREFIX\w*"
    r"|_?(tool_calls?_start|tc_start|tool_start|bot)(_token|_string)?|TOOL_CALLS?_BEGIN|tools_open",
    re.IGNORECASE,
)
"""Names under which vLLM's parsers keep the marks that open a call."""

_LOOKS_LIKE_A_CALL = re.compile(r'\s*(\{\s*"(name|type|function|parameters|arguments)"|\[\s*(\{\s*"name"|\w[\w.]*\())')
"""How a call begins in the formats that are mere JSON, or Python, without a mark."""


class ToolParserError(ValueError):
    """A parser that does not exist, or that the tokenizer is not made for."""


@dataclass(frozen=True)
class Reading:
    """An answer taken apart. `text` and `reasoning` are without special tokens.

    `unreadable`: the policy began a call that is none; `text` then has all that it wrote.
    """

    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    unreadable: bool


class ToolReader:
    """Takes answers apart with vLLM's parser `parser` for tool calls and `reasoning` for thinking, None for neither.

    Importing vLLM takes many seconds, and is done here.

    Raises:
        ToolParserError: there is no such parser, the tokenizer lacks its tokens, or vLLM is not installed.
    """

    def __init__(self, tokenizer: Any, parser: str | None, reasoning: str | None = None) -> None:
        require_known(parser, reasoning)
        self._tokenizer = tokenizer
        self._special: re.Pattern[str] | None = None
        # Mistral's templates refuse any other kind of id.
        self._short_ids = parser == "mistral"
        self._reads_calls = parser is not None
        self._reads_thoughts = reasoning is not None
        self._parsers: dict[tuple[bool, bool], Any] = {}
        """vLLM's classes, by whether they read calls and whether they read thinking."""
        self._thought_end = ""
        if parser or reasoning:
            # What a policy cannot yet write right is no error of ours; vLLM would log a traceback for each.
            for name in ("vllm.tool_parsers", "vllm.parser", "vllm.reasoning"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            self._special = _special_tokens(tokenizer)
            self._tokenizer = _with_vocabulary_at_hand(tokenizer)
            for calls in {False, parser is not None}:
                for thoughts in {False, reasoning is not None}:
                    names = (parser if calls else None, reasoning if thoughts else None)
                    self._parsers[calls, thoughts] = _parser_class(self._tokenizer, *names)
        if reasoning:
            reader = self._parsers[False, True](self._tokenizer).reasoning_parser
            self._thought_end = reader.reasoning_end_str or ""

    def read(
        self, text: str, token_ids: Sequence[int], tools: Sequence[Tool], *, thinking: bool | None = None
    ) -> Reading:
        """Take apart the answer `token_ids`; never raises over what a policy can sample.

        `text` is the answer as it is decoded without special tokens, and cut before the stop string that ended it. The
        marks of many formats are special tokens, so parsers are given the ids decoded once more, with these. Calls are
        looked for only if there are `tools`. `thinking` is what the client asked of the chat template, None for the
        template's default.
        """
        marked = self._marked(text, token_ids) if self._parsers else text
        looks_for_calls = self._reads_calls and bool(tools)
        # With thinking off the prompt closes it, and some of the parsers would take all that follows for thoughts.
        ended = bool(self._thought_end) and self._thought_end in marked
        thoughts = self._reads_thoughts and (thinking is not False or ended)
        parser = self._parsers.get((looks_for_calls, thoughts))
        if parser is None:
            return Reading(text, "", (), unreadable=False)
        options = {} if thinking is None else {"chat_template_kwargs": _both_spellings(thinking)}
        shown = tools if looks_for_calls else ()
        reasoning, content, calls, begun = _parsed(parser, self._tokenizer, marked, token_ids, shown, options)
        if looks_for_calls and (calls is None or (begun and not calls)):
            reasoning, content = None, marked
            if thoughts:
                plain = self._parsers[False, True]
                reasoning, content, *_ = _parsed(plain, self._tokenizer, marked, token_ids, (), options)
            return Reading(self._plain(content), self._plain(reasoning), (), unreadable=True)
        named = tuple(ToolCall(id=self._new_id(), name=name, arguments=given) for name, given in calls or ())
        return Reading(self._plain(content), self._plain(reasoning), named, unreadable=False)

    def _marked(self, text: str, token_ids: Sequence[int]) -> str:
        """The answer with its special tokens, but for the one that ended it, and cut where `text` is."""
        ids = list(token_ids)
        if ids and self._special is not None:
            last = self._decode(ids[-1:])
            if last in _END_OF_TURN or last == self._tokenizer.eos_token:
                ids.pop()
        whole = self._decode(ids)
        if self._special is None:
            return whole[: len(text)]
        at = seen = 0
        for match in self._special.finditer(whole):
            if seen + match.start() - at > len(text):
                break
            seen += match.start() - at
            at = match.end()
        rest = len(text) - seen
        # Where nothing but special tokens lies beyond the text, nothing was cut off, and they belong to the answer.
        return whole if len(whole) - at <= rest else whole[: at + rest]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _plain(self, text: str | None) -> str:
        return "" if not text else text if self._special is None else self._special.sub("", text)

    def _new_id(self) -> str:
        if self._short_ids:
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


def known_parsers() -> tuple[str, ...]:
    """Names of vLLM's parsers for tool calls, without importing it; none where it is not installed."""
    # That of gpt-oss is a stub: the format is read by other code of vLLM's, from a prompt that no chat template made.
    return tuple(name for name in _names("tool_parsers", "_TOOL_PARSERS_TO_REGISTER") if name != "openai")


def known_reasoning_parsers() -> tuple[str, ...]:
    """Names of vLLM's parsers for thinking, without importing it; none where it is not installed."""
    return _names("reasoning", "_REASONING_PARSERS_TO_REGISTER")


def require_known(parser: str | None, reasoning: str | None = None) -> None:
    """Check parsers' names, cheaply.

    Raises:
        ToolParserError: one does not exist, or vLLM is not installed.
    """
    for name, known, kind in (
        (parser, known_parsers, "tool parser"),
        (reasoning, known_reasoning_parsers, "reasoning parser"),
    ):
        if name is None or name in known():
            continue
        if not known():
            raise ToolParserError(f"{kind} {name!r}: vLLM is not installed, whose parser it is; install testgrad[cpu]")
        raise ToolParserError(f"there is no {kind} {name!r}; vLLM has: {', '.join(known())}")


@cache
def _names(package: str, table: str) -> tuple[str, ...]:
    """The keys of a table in vLLM's source, which is read and not run: importing it would take many seconds."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return ()
    source = Path(spec.submodule_search_locations[0], package, "__init__.py").read_text()
    for node in syntax.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == table for t in node.targets):
            return tuple(sorted(ast.literal_eval(node.value)))
    raise ToolParserError(f"vLLM's {package} has no {table}; this release of it is not known here")


def _special_tokens(tokenizer: Any) -> re.Pattern[str] | None:
    added = [str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special]
    tokens = sorted({*added, *tokenizer.all_special_tokens}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, tokens))) if tokens else None


def _with_vocabulary_at_hand(tokenizer: Any) -> Any:
    """The tokenizer, its vocabulary made once: a parser is made for each answer, and each asks for it."""
    from vllm.tokenizers.hf import get_cached_tokenizer

    return get_cached_tokenizer(tokenizer)


def _parser_class(tokenizer: Any, parser: str | None, reasoning: str | None) -> Any:
    """vLLM's parser for both, None if both are None."""
    from vllm.parser.parser_manager import ParserManager

    try:
        return ParserManager.get_parser(parser, reasoning, enable_auto_tools=True, tokenizer=tokenizer)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise ToolParserError(
            f"tool parser {parser!r} and reasoning parser {reasoning!r} do not fit this tokenizer: {error}"
        ) from error


def _both_spellings(thinking: bool) -> dict[str, bool]:
    return {"enable_thinking": thinking, "thinking": thinking}


def _parsed(
    parser_class: Any,
    tokenizer: Any,
    text: str,
    token_ids: Sequence[int],
    tools: Sequence[Tool],
    options: Mapping[str, Any],
) -> tuple[str | None, str | None, list[tuple[str, str]] | None, bool]:
    """Reasoning, text, calls (None if one of them is none) and whether a call was begun at all."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    try:
        request = ChatCompletionRequest(
            messages=[{"role": "user", "content": ""}],
            tools=[{"type": "function", "function": dict(tool)} for tool in tools] or None,
            tool_choice="auto" if tools else "none",
        )
        parser = parser_class(tokenizer, request.tools, **options)
        reasoning, content, found = parser.parse(
            text, request, enable_auto_tools=bool(tools), model_output_token_ids=list(token_ids)
        )
    except Exception:  # vLLM's code over hostile text: whatever it raises, the text was not readable
        return None, text, None, True
    marks = _Marks.of(parser.tool_parser) if tools else _Marks((), ())
    spoken = text.partition(reasoning)[2] if reasoning else text
    begun = bool(tools) and marks.begun(spoken)
    if marks.unclosed(spoken):
        return reasoning, content, None, begun
    calls: list[tuple[str, str]] = []
    for call in found or ():
        if not (isinstance(call.name, str) and NAME.fullmatch(call.name) and _is_object(call.arguments)):
            return reasoning, content, None, begun
        calls.append((call.name, call.arguments))
    return reasoning, content, calls, begun


def _is_object(arguments: Any) -> bool:
    """Whether `arguments` is the text of a JSON object, as clients will read it: strictly."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    if not isinstance(arguments, str):
        return False
    try:
        value = json.loads(arguments, parse_constant=refuse)
        return isinstance(value, dict) and bool(json.dumps(value))
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True)
class _Marks:
    """What opens a call in a parser's format; and pairs of what opens and closes its body.

    Formats that are no JSON need the pairs: of a call that was cut off vLLM gives the arguments that were complete,
    and half a command would be run.
    """

    openings: tuple[str, ...]
    pairs: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

    @classmethod
    def of(cls, tool_parser: Any) -> "_Marks":
        engine = getattr(tool_parser, "_parser_engine", None)
        if engine is None:
            fields = {**vars(type(tool_parser)), **vars(tool_parser)}
            return cls(tuple(_spelled(fields, _BEGINS_A_CALL)), ())
        terminals = engine.parser_engine_config.terminals
        pairs = []
        for opening, closing in (
            ("FUNC_PREFIX", "FUNC_END"),
            (r"INVOKE_PREFIX\w*", "INVOKE_END"),
            ("TOOL_START", "TOOL_END"),
        ):
            pair = (tuple(_spelled(terminals, re.compile(opening))), tuple(_spelled(terminals, re.compile(closing))))
            if all(pair):
                pairs.append(pair)
                break  # the innermost: models leave out the outer end before the end of their turn
        return cls(tuple(_spelled(terminals, _BEGINS_A_CALL)), tuple(pairs))

    def begun(self, text: str) -> bool:
        return any(mark in text for mark in self.openings) or bool(_LOOKS_LIKE_A_CALL.match(text))

    def unclosed(self, text: str) -> bool:
        return any(
            max(text.rfind(mark) for mark in opening) > max(text.rfind(mark) for mark in closing)
            for opening, closing in self.pairs
        )


def _spelled(fields: Mapping[str, Any], names: re.Pattern[str]) -> Iterator[str]:
    for name, value in fields.items():
        if names.fullmatch(name):
            yield from (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ()
