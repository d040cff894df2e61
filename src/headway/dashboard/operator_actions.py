"""What the dashboard's buttons do, by the same rules as the commands `headway dead` and `headway schedule`."""

from collections.abc import Sequence
from concurrent.futures import wait

from headway.actions.choice import Choice
from headway.actions.sending_again import goals, letters, make_plan, sent, start_sending
from headway.core.delay.schedule import HandleParts
from headway.dashboard.running_actions import RunningAction
from headway.delay.scheduler import Scheduler
from headway.errors import ConfigError, HeadwayError
from headway.inspection.dead_topic import opened
from headway.rules import Rule, Rules
from headway.runtime.interrupt import Interrupt
from headway.settings.config import Config

_ANSWER_WITHIN = 30.0
MOST_HANDLES = 1000


def send_again(config: Config, topic: str, choice: Choice, action: RunningAction) -> str:
    """Send dead letters again, and return a sentence with the result.

    Unless exactly one letter was named, the action first asks whether to send that many.
    """
    with opened(topic, config) as (dead, kafka_topics):

        def read(done: int, _: int) -> None:
            action.progress = f"Looking for the letters: {done:,} of {dead.size:,} read."

        plan = make_plan(dead, choice, None, kafka_topics, read)
        for sentence in plan.left_out(topic):
            action.say(sentence)
        if not plan.size:
            return "Nothing was sent: no open letter that can be sent matches."
        dead.memory_of(plan.existing, plan.destinations)  # raises an error if the letters are too scattered to remember
        where = f"{sent(plan.topics)} again{goals(plan.topics)}"
        if len(choice.places) != 1 and not action.ask(f"Send {where}?"):
            return "Nothing was sent, because it was not confirmed."
        sending = start_sending(dead, plan, config, action.say)

        def stored(done: int, _: int) -> None:
            action.progress = f"Sending: {done:,} of {plan.size:,}."

        sending.run(Interrupt(), stored)
        result = f"{sent(sending.stored)} sent again{goals(sending.stored)}."
        if sending.missing:
            raise HeadwayError(f"{result} {letters(sending.missing)} not sent.")
        if sending.is_unmarked:
            raise HeadwayError(f"{result} Some of them still count as open.")
        return result


def hold_records(config: Config, rule: Rule) -> str:
    """Store a rule, and return a sentence with the result."""
    with Rules(config) as rules:
        rules.set(rule)
    return f"The rule {rule.id} is stored. Members of {rule.group} that run with steered=True apply it within a second."


def end_rule(config: Config, group: str, rule: str) -> str:
    """End a rule, and return a sentence with the result."""
    with Rules(config) as rules:
        if not rules.end(group, rule):
            return f"The group {group} has no rule {rule}. Somebody may have ended it."
    return f"The rule {rule} of {group} is ended. Records that it held can start at once."


def cancel_schedules(config: Config, name: str, handles: Sequence[str], action: RunningAction) -> str:
    """Ask relays to cancel schedules, and return a sentence with the outcomes."""
    if not handles or len(handles) > MOST_HANDLES:
        raise ConfigError(f"Select 1 to {MOST_HANDLES:,} schedules; {len(handles):,} were selected.")
    for handle in handles:
        HandleParts.read(handle)  # check all first, so that nothing is changed if one of them is not valid
    action.progress = f"Waiting up to {_ANSWER_WITHIN:.0f} s for the relay's answer."
    with Scheduler(config, name=name) as scheduler:
        requests = [scheduler.cancel(handle) for handle in handles]
        wait([each.answer for each in requests if each.answer], _ANSWER_WITHIN)
        outcomes = []
        for handle, request in zip(handles, requests, strict=True):
            try:
                outcomes.append(str(request.settled(0)))
            except HeadwayError as error:
                outcomes.append("not answered")
                action.say(f"{handle}: {error}")
    return "; ".join(f"{outcomes.count(each):,} {each}" for each in dict.fromkeys(outcomes)).capitalize() + "."
