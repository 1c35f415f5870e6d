"""Events reach those who watch, while they watch."""

from tasks.progress import Event, emit, watching


def test_watchers_see_events_inside_the_block_only():
    seen, event = [], Event("note", "", "hello")
    emit(event)
    with watching(seen.append):
        emit(event)
        with watching(lambda e: seen.append(e.text)):
            emit(event)
    emit(event)
    assert seen == [event, event, "hello"]


def test_a_watcher_is_gone_after_a_failure():
    seen = []
    try:
        with watching(seen.append):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        emit(Event("note", ""))
    assert seen == []
