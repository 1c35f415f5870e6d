"""For random conversations of many agents, under several real chat templates, capture is exact."""

import functools

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.agents import (
    TOOL_LISTS,
    Agent,
    Answer,
    Entry,
    WitnessTokenizer,
    World,
    respelled,
    system,
    tool_result,
    user,
)
from support.chat_templates import TEMPLATES, template_tokenizer
from support.scripted import generation

from harness.proxy.capture import Capture, Request
from harness.proxy.codec import ChatCodec

words = st.text(st.sampled_from("abc \n`é<{"), max_size=10)
answers = st.builds(
    Answer,
    text=words,
    thinks=st.booleans(),
    calls=st.sampled_from([0, 0, 1, 2, 3]),
    spelled=st.booleans(),
    noise=st.lists(st.integers(0, 255), max_size=4).map(tuple),
    end=st.sampled_from(["eos", "eos", "stop", "length"]),
    version=st.integers(0, 3),
)
moves = st.tuples(
    st.sampled_from(
        ["go on"] * 6
        + ["new", "retry", "retry and take", "edit", "rewrite history", "compact", "keep a prefix", "alter"]
        + ["tools"] * 2
    ),
    st.integers(0, 40),  # which agent, and which place in its history
    words,
    answers,
    st.integers(0, 7),  # how the agent spells its history
)


@functools.cache
def speaking(template):
    tokenizer = WitnessTokenizer(template_tokenizer(template))
    codec = ChatCodec(tokenizer)
    return tokenizer, codec, codec.renders_tools


def make_move(world, move):
    """One agent does one thing, and sends a request."""
    kind, number, text, answer, spelling = move
    if kind == "new" or not world.agents:
        tools = number % 4 if world.with_tools else 0
        head = [system(f"agent {number % 3}")] if number % 4 else []
        world.agents.append(Agent(tools, [*head, user(text)]))
        agent = world.agents[-1]
    else:
        agent = world.agents[number % len(world.agents)]
        place = (number // len(world.agents)) % len(agent.history)
        change(world, agent, kind, place, text)
        agent.history = [respelled(entry, spelling) for entry in agent.history]
    said = world.ask(agent, answer)
    if said is None:
        world.agents.remove(agent)
        return
    # after a retry the agent may turn out to have had the first answer all the same
    agent.history += agent.spare if kind == "retry" and agent.spare else [said]


def change(world, agent, kind, place, text):
    """Bring the agent's history to what it sends next."""
    agent.spare = []
    head = [entry for entry in agent.history[:1] if entry.key[0] == "system"]
    if kind in ("retry", "retry and take"):
        agent.spare = agent.history[-1:]
        agent.history = agent.history[:-1]
        return
    if kind in ("edit", "rewrite history") and agent.history[place].key[0] in ("user", "tool"):
        old = agent.history[place]
        new = Entry(old.message | {"content": f"{text} edited"}, (*old.key[:-1], f"{text} edited".strip()))
        after = agent.history[place + 1 :] if kind == "rewrite history" else []
        agent.history = [*agent.history[:place], new, *after]
        if not after:
            return
    elif kind == "compact":
        agent.history = [*head, user(f"summary: {text}")]
        return
    elif kind == "keep a prefix" and place > len(head):
        keep = place
        while keep > len(head) and (agent.history[keep - 1].key[0] == "tool" or not ends_whole(agent, keep)):
            keep -= 1
        agent.history = [*agent.history[:keep], user(f"in short: {text}")]
        return
    elif kind == "alter" and agent.history[place].key[0] == "assistant":
        old = agent.history[place].message
        calls = [call | {"id": f"{call['id'][:-1]}x"} for call in old.get("tool_calls", [])]
        changed = old | {"content": f"altered {text}"} | ({"tool_calls": calls} if calls else {})
        agent.history[place] = Entry(changed, ("altered", place, text, len(world.told)))
        agent.history = agent.history[: place + 1]
    elif kind == "tools" and world.with_tools:
        agent.tools = place % 4
    agent.history += [tool_result(call, text) for call in agent.owed] or [user(text)]


def ends_whole(agent, keep):
    """Whether a history cut here owes no results."""
    return not agent.history[keep - 1].message.get("tool_calls")


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_is_trained_is_what_was_sampled(template):
    tokenizer, codec, with_tools = speaking(template)

    @settings(max_examples=25, deadline=None, phases=set(Phase) - {Phase.explain})
    @given(st.lists(moves, min_size=1, max_size=12))
    def play(script):
        world = World(tokenizer, codec, with_tools)
        for move in script:
            make_move(world, move)
        world.check()

    play()


@pytest.mark.parametrize("template", ["chatml_tools", "qwen3", "llama3_tools", "mistral_tools"])
def test_tools_that_come_and_go_cost_no_captured_token(template):
    tokenizer, codec, _ = speaking(template)
    world = World(tokenizer, codec)
    world.agents.append(Agent(1, [system("agent"), user("a")]))
    (agent,) = world.agents
    for tools in (1, 2, 1, 0, 2):
        agent.tools = tools
        agent.history += [world.ask(agent, Answer()), user("more")]
    world.check()


@pytest.mark.parametrize("template", ["chatml_tools", "qwen3", "llama3_tools", "smollm2"])
def test_a_policy_that_writes_as_the_template_does_is_shown_just_what_a_whole_rendering_shows(template):
    tokenizer, codec, with_tools = speaking(template)
    inner = tokenizer._tokenizer

    def rendered(messages, tools):
        shown = [{"type": "function", "function": tool} for tool in tools] or None
        return inner.apply_chat_template(messages, tools=shown, tokenize=False, add_generation_prompt=True)

    @settings(max_examples=10, deadline=None, phases=set(Phase) - {Phase.explain})
    @given(st.integers(0, 3), st.lists(st.tuples(st.integers(0, 1), st.text(st.sampled_from("abc {é"))), max_size=6))
    def play(offered, turns):
        tools = TOOL_LISTS[offered] if with_tools else []
        capture, seen = Capture(codec), [{"role": "user", "content": "begin"}]
        template_view = list(seen)
        for number, (calls, text) in enumerate([(0, "go"), *turns]):
            request = Request(seen, tools)
            turn = capture.begin_turn(request)
            assert tokenizer.decode(list(turn.prompt)) == rendered(template_view, tools)
            answer = {"role": "assistant", "content": f"so {number}"}
            shown = dict(answer)
            if calls and tools:
                call = {"id": f"call{number:05d}", "name": tools[0]["name"], "arguments": '{"n": 1}'}
                answer |= {"content": "", "tool_calls": [call]}
                called = {"name": call["name"], "arguments": {"n": 1}}
                shown |= {"content": "", "tool_calls": [{"id": call["id"], "type": "function", "function": called}]}
            after = rendered([*template_view, shown, {"role": "user", "content": "?"}], tools)
            # what the policy has to sample, up to its end of turn
            said = after[len(tokenizer.decode(list(turn.prompt))) :].split(inner.eos_token)[0] + inner.eos_token
            capture.end_turn(turn, generation(inner.encode(said, add_special_tokens=False)), answer)
            if "tool_calls" in answer:
                result = {"role": "tool", "content": text, "tool_call_id": call["id"], "name": call["name"]}
                seen, template_view = [*seen, answer, result], [*template_view, shown, result]
            else:
                new = {"role": "user", "content": f"{text}."}
                seen, template_view = [*seen, answer, new], [*template_view, shown, new]
        assert len(capture.segments) == 1

    play()
