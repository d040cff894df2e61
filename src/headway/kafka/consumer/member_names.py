"""A member's own `client.id`, the same in the groups of all its levels.

The ids that a classic group gives to its members begin with their `client.id`, and assignors go by the order of those
ids. Under a `client.id` of its own a member has the same place in every level's group, and so the same partitions of
all levels. Members that share one are in another order in each group.
"""

import uuid
from typing import Any

from headway.settings.config import Config

_DEFAULT = "headway"


def as_member(config: Config) -> dict[str, Any]:
    """Return a consumer's settings with a `client.id` that no other member has; the user's own stays its beginning.

    A member with a `group.instance.id` has its place by that, and keeps its `client.id`.
    """
    if config.get("group.instance.id"):
        return dict(config)
    return {**config, "client.id": f"{config.get('client.id') or _DEFAULT}-{uuid.uuid4().hex[:12]}"}
