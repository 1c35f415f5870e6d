"""Between messages and token ids: the only place of the harness that tokenizes or decodes."""

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from harness.proxy.conversation import ChatMessage, Tool
from trainer.rollout import Generation


class CodecError(ValueError):
    """Messages that the tokenizer's chat template cannot render, or a tokenizer without a usable one."""


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: Any
    eos_token_id: int | None
    all_special_ids: list[int]
    added_tokens_decoder: dict[int, Any]

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def encode(self, text: str, **options: Any) -> Any: ...

    def decode(self, token_ids: Any, **options: Any) -> Any: ...


class AnswerText(NamedTuple):
    """Text of an answer, and the stop string before which it ends, if one ended it."""

    text: str
    stop_string: str | None


class ChatCodec:
    """Renders conversations with the tokenizer's chat template, and decodes what the policy sampled.

    A conversation is rendered whole only once, at its first request. Afterwards only what follows the newest sampled
    answer is rendered and encoded: sampled ids are never decoded and encoded again, because that round trip does not
    give back the same ids and would train tokens which the policy never chose.

    Special tokens, and others that say who speaks, come from the template alone. A message that spells one, such as a
    file that holds `<|im_end|>`, is encoded as the characters that it is: else whoever writes a file could end a turn
    and speak as somebody else.

    Raises:
        CodecError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not tokenizer.chat_template:
            raise CodecError(
                "the tokenizer has no chat template, so messages cannot become tokens; use an instruction-tuned "
                "model, or put a chat_template.jinja into the model's folder"
            )
        self._tokenizer = tokenizer
        special = {
            index: str(token.content) for index, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        self._special_ids = frozenset({*special, *tokenizer.all_special_ids})
        guarded = [text for text in (*special.values(), *_role_markers(tokenizer)) if len(text) > 1]
        spelled = "|".join(re.escape(text) for text in guarded)
        self._spelled = re.compile(spelled) if spelled else None
        # Before the second character of each, those that overlap included.
        self._inside = re.compile(f"(?<=(?=(?:{spelled})).)", re.DOTALL) if spelled else None
        self._cut = _mark()

    def encode_prompt(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), thinking: bool | None = None
    ) -> list[int]:
        """Ids of a conversation's first request, up to where the policy's answer begins.

        Raises:
            CodecError: the template refuses these messages, or does not show tools to the policy.
        """
        if tools and not self.renders_tools:
            raise CodecError(
                "the chat template does not show tools to the policy, which could then call none; serve a model whose "
                "template has them, or use a scaffold that needs none"
            )
        return self._encode(self._render(_as_dicts(messages), tools, thinking, generation_prompt=True))

    def encode_delta(
        self,
        answer: ChatMessage,
        new: Sequence[ChatMessage],
        sampled: Sequence[int],
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
    ) -> list[int]:
        """Ids that follow the sampled ids of `answer` when the conversation goes on with the messages `new`.

        That is what the template puts after an assistant turn, the new messages, and the opening of the next answer.
        An end-of-turn token that the policy sampled itself is not repeated; an answer ended by a stop string or by
        length gets the whole tail. Neither the text of the answer nor what came before it plays a part: a placeholder
        stands in for it, so a template that strips thinking or whitespace from older turns changes nothing, and the
        cost does not grow with the conversation.

        Raises:
            CodecError: the template refuses these messages, or does not print an assistant turn exactly once.
        """
        shown = tools if self._delta_shows_tools else ()
        try:
            ids = self._after_calls(answer, new, shown, thinking) if answer.get("tool_calls") else None
        except CodecError:
            # Such as one that takes a single call an answer, or no message of the user after a tool's.
            ids = None
        if ids is None:
            ids = self._after_text(answer, new, shown, thinking)
        ended_by_itself = bool(len(sampled) and ids) and sampled[-1] == ids[0] and ids[0] in self._special_ids
        return ids[1:] if ended_by_itself else ids

    def encode_answer(self, text: str) -> list[int]:
        """Ids of `text` as an answer that ends by itself: with the token that the template puts at the end of a turn.

        They continue a prompt that ends where an answer begins, which is encoded apart from them.

        Raises:
            CodecError: the template ends a turn without a special token.
        """
        answer = ChatMessage(role="assistant", content=text)
        after = self.encode_delta(answer, [ChatMessage(role="user", content="?")], [])
        if not after or after[0] not in self._special_ids:
            raise CodecError("the chat template ends an assistant turn without a special token, so no answer can end")
        return [*self._encode(self._cut_up(text)), after[0]]

    def decode_answer(self, generation: Generation, stop: Sequence[str]) -> AnswerText:
        """Text of an answer as a client expects it: no special tokens, cut before a stop string.

        The generation itself keeps every id, those of the stop string included.
        """
        text = self.decode(generation.token_ids)
        if generation.finish_reason != "stop":
            return AnswerText(text, None)
        cuts = [(at, s) for at, s in ((text.find(s), s) for s in stop if s) if at >= 0]
        if not cuts:
            return AnswerText(text, None)
        at, stop_string = min(cuts, key=lambda cut: cut[0])
        return AnswerText(text[:at], stop_string)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids` without special tokens."""
        return str(
            self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    @cached_property
    def renders_tools(self) -> bool:
        """Whether the template shows the policy which tools there are."""
        mark = _mark()
        return mark in self._render([_QUESTION], [_probe_tool(mark)], None, generation_prompt=True)

    @cached_property
    def _delta_shows_tools(self) -> bool:
        # Most templates print tools at the head only. Rendering dozens of schemas anew for each turn is then in vain.
        mark = _mark()
        call = {"id": mark[:9], "type": "function", "function": {"name": "probe", "arguments": {"x": mark}}}
        answered: list[dict[str, Any]] = [
            {"role": "assistant", "content": mark},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        told = [_QUESTION, {"role": "tool", "content": "done", "tool_call_id": mark[:9], "name": "probe"}]
        for answer in answered:
            for message in told:
                conversation = [_QUESTION, answer, message]
                without = self._tail_or_none(mark, conversation, ())
                if without != self._tail_or_none(mark, conversation, [_probe_tool("probe")]):
                    return True
        return False

    def _tail_or_none(self, mark: str, conversation: list[dict[str, Any]], tools: Sequence[Tool]) -> str | None:
        try:
            return self._render(conversation, tools, None, generation_prompt=True).rpartition(mark)[2]
        except CodecError:
            return None

    def _after_text(
        self, answer: ChatMessage, new: Sequence[ChatMessage], tools: Sequence[Tool], thinking: bool | None
    ) -> list[int]:
        """Ids after an answer rendered as text, from its end-of-turn token on."""
        mark = _mark()
        tail, after = self._around(mark, {"role": "assistant", "content": mark}, answer, new, tools, thinking)
        if after.startswith(tail):
            return self._encode(after)
        # Some templates end a finished conversation with a further token. The turn itself must end the same.
        ids, tail_ids = self._encode(after), self._encode(tail)
        if ids and tail_ids and ids[0] == tail_ids[0] and ids[0] in self._special_ids:
            return ids
        raise CodecError(
            f"the chat template ends an assistant turn with {tail[:80]!r} when it is the last message, but with "
            f"{after[:80]!r} when the conversation goes on; a growing conversation then has no fixed prefix"
        )

    def _after_calls(
        self, answer: ChatMessage, new: Sequence[ChatMessage], tools: Sequence[Tool], thinking: bool | None
    ) -> list[int]:
        """The same for an answer rendered with its tool calls, since a template may look back at them.

        The calls' arguments are replaced. What the template prints after the last of them (brackets, closing tags) was
        sampled by the policy; the end of the turn is found by its special token.
        """
        mark = _mark()
        calls = [
            {
                "id": template_id(call["id"]),
                "type": "function",
                "function": {"name": call["name"], "arguments": {"x": mark} if last else {}},
            }
            for call, last in _with_last(answer["tool_calls"])
        ]
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        tail, after = self._around(mark, message, answer, new, tools, thinking)
        ids = self._encode(after)
        ends = []
        for i, (token, last) in enumerate(zip(ids, self._encode(tail), strict=False)):
            if token != last:
                break
            if token in self._special_ids:
                ends.append(i)
        if not ends:
            raise CodecError("the chat template ends a turn of tool calls without a special token")
        return ids[ends[-1] :]

    def _around(
        self,
        mark: str,
        placeholder: dict[str, Any],
        answer: ChatMessage,
        new: Sequence[ChatMessage],
        tools: Sequence[Tool],
        thinking: bool | None,
    ) -> tuple[str, str]:
        """What the template prints after `mark`: when the placeholder comes last, and when `new` follows."""
        answered = [_QUESTION, placeholder]
        following = _as_dicts([answer, *new])[1:]
        tail = _after(mark, self._render(answered, tools, thinking, generation_prompt=False))
        return tail, _after(mark, self._render([*answered, *following], tools, thinking, generation_prompt=True))

    def _render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[Tool],
        thinking: bool | None,
        *,
        generation_prompt: bool,
    ) -> str:
        # Templates do not agree on the name of the switch; those that know neither name ignore both.
        switches = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
        try:
            text = self._tokenizer.apply_chat_template(
                self._cut_up(list(messages)),
                tools=self._cut_up([{"type": "function", "function": dict(tool)} for tool in tools]) or None,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                **switches,
            )
        except Exception as error:
            # A template is a program, and the messages are its input: it may raise anything.
            raise CodecError(f"the chat template refuses these messages: {error}") from error
        return str(text)

    def _cut_up(self, value: Any) -> Any:
        """`value` with a cut in each special token that its texts spell; `_encode` encodes the parts by themselves."""
        if isinstance(value, str):
            if self._spelled is None or self._inside is None or not self._spelled.search(value):
                return value
            return self._inside.sub(self._cut, value)
        if isinstance(value, dict):
            return {self._cut_up(name): self._cut_up(item) for name, item in value.items()}
        return [self._cut_up(item) for item in value] if isinstance(value, list) else value

    def _encode(self, text: str) -> list[int]:
        # Half a surrogate pair, which arguments can hold as an escape, is none that a tokenizer takes.
        text = text.encode("utf-8", "replace").decode()
        # The template has already printed the special tokens.
        parts = (self._tokenizer.encode(part, add_special_tokens=False) for part in text.split(self._cut))
        return [int(i) for ids in parts for i in ids]


_QUESTION: dict[str, Any] = {"role": "user", "content": "?"}
_OF_ANSWERS = re.compile("think|reason|tool|call|function", re.IGNORECASE)
"""In tokens that stand inside of an answer, which a client may send back as text."""


def _role_markers(tokenizer: Tokenizer) -> list[str]:
    """Added tokens that the tokenizer does not call special, and by which the template tells who speaks."""
    plain = [str(token.content) for token in tokenizer.added_tokens_decoder.values() if not token.special]
    texts = []
    for role in ("system", "user") if plain else ():
        messages = [{"role": role, "content": "?"}, _QUESTION, {"role": "assistant", "content": "!"}, _QUESTION]
        try:
            # without a role for the system some templates refuse two questions in a row
            texts.append(str(tokenizer.apply_chat_template(messages[role == "user" :], tokenize=False)))
        except Exception:  # a template is a program: it may raise anything
            continue
    return [text for text in plain if not _OF_ANSWERS.search(text) and any(text in shown for shown in texts)]


def _mark() -> str:
    # Not to be found in any message, nor to be guessed by one.
    return f"answer{secrets.token_hex(16)}"


def _probe_tool(name: str) -> Tool:
    return Tool(name=name, description="", parameters={"type": "object", "properties": {}})


def _after(mark: str, text: str) -> str:
    if text.count(mark) != 1:
        raise CodecError(
            f"the chat template prints an assistant turn {text.count(mark)} times instead of once; "
            "such a template cannot carry a conversation of several turns"
        )
    return text.split(mark)[1]


def _with_last(items: Sequence[Any]) -> list[tuple[Any, bool]]:
    return [(item, i == len(items) - 1) for i, item in enumerate(items)]


def _as_dicts(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them; a tool's message gets the name of the tool from the call it answers."""
    names: dict[str, str] = {}
    dicts = []
    for message in messages:
        shown: dict[str, Any] = {"role": message["role"], "content": message["content"]}
        if message.get("reasoning"):
            shown["reasoning_content"] = message["reasoning"]
        if calls := message.get("tool_calls"):
            names.update({call["id"]: call["name"] for call in calls})
            shown["tool_calls"] = [
                {
                    "id": template_id(call["id"]),
                    "type": "function",
                    "function": {"name": call["name"], "arguments": _as_object(call["arguments"])},
                }
                for call in calls
            ]
        if "tool_call_id" in message:
            shown["tool_call_id"] = template_id(message["tool_call_id"])
            name = message.get("name") or names.get(message["tool_call_id"])
            shown |= {"name": name} if name else {}
        dicts.append(shown)
    return dicts


def _as_object(arguments: str) -> Any:
    """Arguments as templates want them, an object; what is none stays text."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def codec_of(model: Path) -> ChatCodec:
    """The codec of the tokenizer in a model's folder.

    Raises:
        CodecError: the tokenizer has no chat template.
    """
    from transformers import AutoTokenizer

    return ChatCodec(AutoTokenizer.from_pretrained(model))


def template_id(call_id: str) -> str:
    """The id under which templates are shown a call: Mistral's refuse one that has not nine letters and digits."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]
