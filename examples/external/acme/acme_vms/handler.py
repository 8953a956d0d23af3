# acme_vms/handler.py
import tomllib
from dataclasses import replace

from muster_informers.plugin import (
    NATIVE,
    DefaultEventHandler,
    ExternalKind,
    ExternalQueue,
    HandlerSettingsWrong,
    NotTaken,
)


class AcmeHandler(DefaultEventHandler):
    """Keeps a part of each host and node free, and closes those in repair.

    For the RM's objects it also refuses banned users, and gives each tenant the quota of its application.
    """

    def __init__(self, cache, spare, banned, is_of_rm):
        super().__init__(cache)
        self.spare, self.banned, self.is_of_rm = spare, banned, is_of_rm

    def add_node(self, node, *, initial):
        self.cache.put(self.seen(node))

    def update_node(self, old, new):
        self.cache.put(self.seen(new))

    def add_application(self, application, *, initial):
        if self.is_of_rm and application.user in self.banned:
            raise NotTaken(f"user {application.user} may run nothing here")
        super().add_application(application, initial=initial)
        if vcore := application.tags.get("acme/quota"):
            self.cache.put(ExternalQueue(application.queue, {"vcore": int(vcore)}))

    def delete_application(self, application):
        super().delete_application(application)
        if application.tags.get("acme/quota"):
            self.cache.delete(ExternalKind.QUEUE, application.queue)

    def seen(self, node):
        occupied = {name: node.occupied.get(name, 0) + amount for name, amount in self.spare.items()}
        schedulable = node.schedulable and node.attributes.get("state") != "repair"
        return replace(node, occupied={**node.occupied, **occupied}, schedulable=schedulable)


def make_handler(cache, config, context):
    """The factory: one handler for each informer. ``config``: the content of --config-path; None without it."""
    try:
        given = tomllib.loads((config or b"").decode())
    except ValueError as error:
        raise HandlerSettingsWrong(f"config_path: {error}") from None
    spare, banned = given.get("spare", {}), given.get("banned", [])
    if not isinstance(spare, dict) or not all(type(amount) is int and amount >= 0 for amount in spare.values()):
        raise HandlerSettingsWrong(f"config_path: spare: {spare}, expected amounts by type")
    return AcmeHandler(cache, spare, banned, context.source_kind == NATIVE)
