from __future__ import annotations

from tests.unit.cli.fake_service import FakeService, Reply, Rubato, job

TOKEN = {"id": "tok_1", "name": "ci", "role": "user", "user": "ada", "expires_at": None, "revoked_at": None}


def test_a_new_token_alone_is_on_stdout(service: FakeService, rubato: Rubato) -> None:
    service.on("POST", "/tokens", Reply({**TOKEN, "token": "rbt_secret"}, status=201))
    done = rubato("token", "create", "ci", "--user", "ada", "--expires", "30d")
    assert (done.code, done.out) == (0, "rbt_secret\n")
    assert "rubato token revoke tok_1" in done.err
    assert service.requests[-1].json == {"name": "ci", "user": "ada", "role": "user", "expires_in": 30 * 86400}


def test_a_token_of_an_agent_is_bound_to_its_cluster(service: FakeService, rubato: Rubato) -> None:
    service.on("POST", "/tokens", Reply({**TOKEN, "user": None, "role": "cluster", "token": "rbt_secret"}, status=201))
    assert rubato("token", "create", "edge", "--role", "cluster", "--cluster", "edge").code == 0
    body = {"name": "edge", "user": None, "role": "cluster", "expires_in": None, "cluster": "edge"}
    assert service.requests[-1].json == body


def test_tokens_are_listed_and_revoked(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/tokens", {"items": [TOKEN], "next_cursor": None})
    assert rubato("token", "ls").out.splitlines()[1].split() == ["tok_1", "ci", "user", "ada", "-", "-", "-"]
    bound = {**TOKEN, "name": "edge", "role": "cluster", "user": None, "cluster": "edge"}
    service.on("GET", "/tokens", {"items": [bound], "next_cursor": None})
    assert rubato("token", "ls").out.splitlines()[1].split() == ["tok_1", "edge", "cluster", "-", "edge", "-", "-"]
    service.on("DELETE", "/tokens/tok_1", Reply(status=204, content=b""))
    assert rubato("token", "revoke", "tok_1").code == 0


def test_a_person_is_let_into_a_project(service: FakeService, rubato: Rubato) -> None:
    service.on("POST", "/users", Reply({"name": "ada"}, status=201))
    service.on("POST", "/projects", Reply({"name": "vision"}, status=201))
    service.on("PUT", "/projects/vision/members/ada", {"user": "ada", "role": "editor"})
    service.on("DELETE", "/projects/vision/members/ada", Reply(status=204, content=b""))
    service.on("PATCH", "/users/ada", {"name": "ada"})
    assert rubato("user", "add", "ada", "--admin").code == 0
    assert service.requests[-1].json == {"name": "ada", "is_admin": True}
    assert rubato("project", "add", "vision").code == 0
    assert rubato("project", "grant", "vision", "ada", "editor").code == 0
    assert service.requests[-1].json == {"role": "editor"}
    assert rubato("project", "grant", "vision", "ada", "owner").code == 2
    assert rubato("project", "withdraw", "vision", "ada").code == 0
    disabled = rubato("user", "disable", "ada")
    assert service.requests[-1].json == {"is_admin": None, "is_disabled": True}
    assert (disabled.code, "`rubato user enable ada` lets them in again" in disabled.err) == (0, True)
    for back in (("enable", "ada"), ("disable", "ada", "--undo")):
        assert rubato("user", *back).err == "ada may come in again.\n"
        assert service.requests[-1].json == {"is_admin": None, "is_disabled": False}


def test_lists_of_projects_members_and_users(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/projects", {"items": [{"name": "vision", "role": "viewer", "description": ""}]})
    service.on("GET", "/projects/vision", {"name": "vision", "members": [{"user": "ada", "role": "admin"}]})
    service.on("GET", "/users", {"items": [{"name": "ada", "is_admin": False, "created_at": "t"}]})
    assert "vision" in rubato("project", "ls").out
    assert rubato("project", "members", "vision").out.splitlines()[1].split() == ["ada", "admin"]
    assert rubato("user", "ls", "--json").json[0]["name"] == "ada"


def test_a_project_is_described_anew_and_deleted(service: FakeService, rubato: Rubato) -> None:
    service.on("PATCH", "/projects/vision", {"name": "vision"})
    assert rubato("project", "set", "vision", "--description", "cats").code == 0
    assert service.requests[-1].json == {"description": "cats", "quota": {}}
    assert rubato("project", "set", "vision").code == 2
    service.on("DELETE", "/projects/vision", Reply(status=204))
    assert rubato("project", "rm", "vision", "--json").json == {"name": "vision"}
    has_jobs = Reply({"detail": "The project 'vision' has jobs", "code": "conflict"}, status=409)
    service.on("DELETE", "/projects/vision", has_jobs)
    refused = rubato("project", "rm", "vision")
    assert (refused.code, "has jobs" in refused.err) == (1, True)


def test_a_user_is_made_an_admin_and_not_any_more(service: FakeService, rubato: Rubato) -> None:
    service.on("PATCH", "/users/ada", {"name": "ada"})
    for flag, is_admin, told in (("--admin", True, "an admin"), ("--no-admin", False, "no admin")):
        assert f"ada is {told} of the service" in rubato("user", "set", "ada", flag).err
        assert service.requests[-1].json == {"is_admin": is_admin, "is_disabled": None}
    assert rubato("user", "set", "ada").code == 2


ENTRY = {
    "id": 7,
    "time": "2026-01-31T12:00:00.123Z",
    "actor": "ada",
    "action": "job.deleted",
    "job_id": "job_1",
    "detail": {"name": "digits"},
}


def test_who_changed_what_is_listed_in_local_time(service: FakeService, rubato: Rubato, zone: str) -> None:
    service.on("GET", "/audit", {"items": [ENTRY, {**ENTRY, "job_id": None}], "next_cursor": None})
    lines = rubato("audit").out.splitlines()
    assert lines[0].split() == ["TIME", "USER", "ACTION", "JOB", "DETAIL"]
    clock = {"America/New_York": "07:00:00", "Europe/Berlin": "13:00:00"}[zone]
    assert [line.split(maxsplit=5) for line in lines[1:]] == [
        ["2026-01-31", clock, "ada", "job.deleted", "job_1", '{"name": "digits"}'],
        ["2026-01-31", clock, "ada", "job.deleted", "-", '{"name": "digits"}'],
    ]
    assert service.requests[-1].query["limit"] == "50"


def test_of_what_was_changed_only_what_is_asked_for(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/audit", {"items": [ENTRY], "next_cursor": "7"})
    shown = rubato("audit", "--user", "ada", "--action", "job.deleted", "--job", "job_1", "-n", "1", "--json")
    assert shown.json == [ENTRY]
    (asked,) = service.requests  # an id is not looked up: the job may have been deleted
    query = asked.query
    assert {name: query[name] for name in ("actor", "action", "job_id", "limit")} == {
        "actor": "ada",
        "action": "job.deleted",
        "job_id": "job_1",
        "limit": "1",
    }
    service.on("GET", "/jobs/digits", job(id="job_9"))
    rubato("audit", "--job", "digits")
    assert service.requests[-1].query["job_id"] == "job_9"


def test_ps_filters(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs", {"items": [], "next_cursor": None})
    assert rubato("ps", "--project", "vision", "--label", "team=a").code == 0
    assert (service.requests[-1].query["project"], service.requests[-1].query["label"]) == ("vision", "team=a")


def test_quotas_are_shown_and_changed(service: FakeService, rubato: Rubato) -> None:
    found = {
        "quota": {"max_slots": 8, "max_queued": None, "max_priority": 70},
        "use": {"slots": 6, "queued": 2},
    }
    service.on("GET", "/projects/vision", found)
    service.on("PATCH", "/projects/vision", found)
    shown = rubato("project", "quota", "vision")
    assert [line.split() for line in shown.out.splitlines()] == [
        ["slots", "6", "of", "8"],
        ["queued", "2", "of", "any", "number"],
        ["priority", "up", "to", "70"],
    ]
    assert rubato("project", "quota", "vision", "--slots", "8", "--queued", "none").code == 0
    assert service.requests[-1].json == {"description": None, "quota": {"max_slots": 8, "max_queued": None}}
    assert rubato("project", "quota", "vision", "--slots", "many").code == 2
