"""The Python client py-consul, unmodified, against an agent: python.py HOST:PORT.

Each function is a part of the API as the client offers it. A difference is an AssertionError.
"""

import sys
import threading

import consul


def key_value(client):
    assert client.kv.put("app/one", "1")
    index, entry = client.kv.get("app/one")
    assert entry["Value"] == b"1", entry
    assert entry["Key"] == "app/one" and entry["Flags"] == 0, entry
    assert client.kv.get("app/absent")[1] is None
    assert client.kv.put("app/two", "2", flags=7)
    assert client.kv.get("app/two")[1]["Flags"] == 7
    assert [e["Key"] for e in client.kv.get("app/", recurse=True)[1]] == ["app/one", "app/two"]
    assert client.kv.get("app/", keys=True, separator="/")[1] == ["app/one", "app/two"]
    assert not client.kv.put("app/one", "3", cas=1)
    assert client.kv.put("app/one", "3", cas=entry["ModifyIndex"])
    # A blocking read wakes with the write.
    index, _ = client.kv.get("app/one")
    seen = []
    reader = threading.Thread(target=lambda: seen.append(client.kv.get("app/one", index=index, wait="20s")))
    reader.start()
    client.kv.put("app/one", "4")
    reader.join(20)
    assert seen and seen[0][1]["Value"] == b"4", seen
    assert client.kv.delete("app", recurse=True)
    assert client.kv.get("app/one")[1] is None


def sessions_and_locks(client):
    session = client.session.create("worker", ttl=30)
    assert client.session.info(session)[1]["Name"] == "worker"
    assert session in [s["ID"] for s in client.session.list()[1]]
    assert client.kv.put("lock", "held", acquire=session)
    other = client.session.create("other", ttl=30)
    assert not client.kv.put("lock", "held", acquire=other)
    assert client.kv.put("lock", "free", release=session)
    client.session.renew(session)
    assert client.session.destroy(session) and client.session.destroy(other)


def transactions(client):
    operations = [{"KV": {"Verb": "set", "Key": "txn/a", "Value": "MQ=="}}, {"KV": {"Verb": "get", "Key": "txn/a"}}]
    answer = client.txn.put(operations)
    assert not answer["Errors"] and len(answer["Results"]) == 2, answer


def agent(client):
    assert client.agent.self()["Config"]["Server"] is True
    assert len(client.agent.members()) == 1
    check = consul.Check.ttl("10s")
    assert client.agent.service.register("api", service_id="api-1", address="127.0.0.8", port=80, tags=["v1"], check=check)
    assert client.agent.services()["api-1"]["Port"] == 80
    assert client.agent.check.ttl_pass("service:api-1")
    index, nodes = client.health.service("api", passing=True)
    assert [n["Service"]["ID"] for n in nodes] == ["api-1"], nodes
    assert client.agent.check.ttl_fail("service:api-1")
    assert client.health.service("api", passing=True)[1] == []
    assert client.health.state("critical")[1][0]["ServiceID"] == "api-1"
    assert client.agent.maintenance(True, "testing") and client.agent.maintenance(False)
    assert client.agent.service.deregister("api-1")


def catalog(client):
    service = {"Service": "db", "ID": "db-1", "Tags": ["primary"], "Port": 5432}
    assert client.catalog.register("node-1", "10.0.0.1", service=service)
    assert "node-1" in [n["Node"] for n in client.catalog.nodes()[1]]
    assert client.catalog.services()[1]["db"] == ["primary"]
    assert client.catalog.service("db", tag="primary")[1][0]["ServicePort"] == 5432
    assert client.catalog.node("node-1")[1]["Services"]["db-1"]["Service"] == "db"
    assert client.catalog.deregister("node-1")
    assert "dc1" in client.catalog.datacenters()


def others(client):
    assert client.status.leader()
    assert client.status.peers()
    name = client.event.fire("deploy", "v2")["Name"]
    assert name == "deploy"
    assert "deploy" in [e["Name"] for e in client.event.list(name="deploy")[1]]
    query = client.query.create("db", name="nearest-db")
    assert client.query.execute("nearest-db")["Service"] == "db"
    assert client.query.delete(query["ID"])
    assert client.coordinate.datacenters()


def main():
    host, port = sys.argv[1].split(":")
    client = consul.Consul(host=host, port=int(port))
    failed = []
    for part in (key_value, sessions_and_locks, transactions, agent, catalog, others):
        try:
            part(client)
        except Exception as error:  # a failed part does not stop the others
            failed.append(part.__name__)
            print(f"python: {part.__name__}: {type(error).__name__}: {error}")
    print(f"python: {6 - len(failed)} of 6 parts pass")
    sys.exit(1 if failed else 0)


main()
