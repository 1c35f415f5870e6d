"""Between messages and token ids: the only place of the harness that tokenizes or decodes."""

import secrets
from collections.abc import Sequence
from typing import Any, Protocol, TypedDict

import jinja2

from trainer.rollout import Generation


class CodecError(ValueError):
    """Messages that the tokenizer's chat template cannot render, or a tokenizer without a usable one."""


class ChatMessage(TypedDict):
    """One message of a conversation, its text already joined from parts."""

    role: str
    content: str


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: Any
    eos_token_id: int | None
    all_special_ids: list[int]
    added_tokens_decoder: dict[int, Any]

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def encode(self, text: str, **options: Any) -> Any: ...

    def decode(self, token_ids: Any, **options: Any) -> Any: ...


class ChatCodec:
    """Renders conversations with the tokenizer's chat template, and decodes what the policy sampled.

    A conversation is rendered whole only once, at its first request. Afterwards only what follows the newest sampled
    answer is rendered and encoded: sampled ids are never decoded and encoded again, because that round trip does not
    give back the same ids and would train tokens which the policy never chose.

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
        special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special_ids = frozenset(special | set(tokenizer.all_special_ids))

    def encode_prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Ids of a conversation's first request, up to where the policy's answer begins.

        Raises:
            CodecError: the template refuses these messages.
        """
        return self._encode(self._render(messages, generation_prompt=True))

    def encode_delta(
        self, history: Sequence[ChatMessage], new: Sequence[ChatMessage], sampled: Sequence[int]
    ) -> list[int]:
        """Ids that follow the answer `sampled`, given to `history`, when the conversation goes on with `new`.

        That is what the template puts after an assistant turn, the new messages, and the opening of the next answer.
        An end-of-turn token that the policy sampled itself is not repeated; an answer ended by a stop string or by
        length gets the whole tail. The text of the answer plays no part: a placeholder stands in for it, so a template
        that strips thinking or whitespace from older turns changes nothing.

        Raises:
            CodecError: the template refuses these messages, or does not print an assistant turn exactly once.
        """
        placeholder = f"answer{secrets.token_hex(16)}"
        answered = [*history, ChatMessage(role="assistant", content=placeholder)]
        tail = _after(placeholder, self._render(answered, generation_prompt=False))
        delta = _after(placeholder, self._render([*answered, *new], generation_prompt=True))
        if not delta.startswith(tail):
            raise CodecError(
                f"the chat template ends an assistant turn with {tail[:80]!r} when it is the last message, but with "
                f"{delta[:80]!r} when the conversation goes on; a growing conversation then has no fixed prefix"
            )
        ids = self._encode(delta)
        ended_by_itself = bool(sampled and ids) and sampled[-1] == ids[0] and ids[0] in self._special_ids
        return ids[1:] if ended_by_itself else ids

    def decode_answer(self, generation: Generation, stop: Sequence[str]) -> str:
        """Text of an answer as a client of the OpenAI API expects it: no special tokens, cut before a stop string.

        The generation itself keeps every id, those of the stop string included.
        """
        text = self.decode(generation.token_ids)
        if generation.finish_reason != "stop":
            return text
        cuts = [at for at in (text.find(s) for s in stop) if at >= 0]
        return text[: min(cuts)] if cuts else text

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids` without special tokens."""
        return str(
            self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def _render(self, messages: Sequence[ChatMessage], generation_prompt: bool) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(m) for m in messages], tokenize=False, add_generation_prompt=generation_prompt
            )
        except jinja2.TemplateError as error:
            raise CodecError(f"the chat template refuses these messages: {error}") from error
        return str(text)

    def _encode(self, text: str) -> list[int]:
        # The template has already printed the special tokens.
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=False)]


def _after(placeholder: str, text: str) -> str:
    if text.count(placeholder) != 1:
        raise CodecError(
            f"the chat template prints an assistant turn {text.count(placeholder)} times instead of once; "
            "such a template cannot carry a conversation of several turns"
        )
    return text.split(placeholder)[1]
