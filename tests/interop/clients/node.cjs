// The Node.js client `consul`, unmodified, against an agent: node.cjs HOST:PORT.
// Each function tests a part of the client's API.

const assert = require("node:assert");
const Consul = require("consul");

async function keyValue(consul) {
  assert(await consul.kv.set("app/one", "1"));
  assert.equal((await consul.kv.get("app/one")).Value, "1");
  assert.equal(await consul.kv.get("app/absent"), undefined);
  assert.deepEqual(await consul.kv.keys("app/"), ["app/one"]);
  assert(!(await consul.kv.set({ key: "app/one", value: "2", cas: "1" })));
  await consul.kv.del({ key: "app", recurse: true });
}

async function sessions(consul) {
  const { ID } = await consul.session.create({ name: "worker", ttl: "30s" });
  assert(await consul.kv.set({ key: "lock", value: "held", acquire: ID }));
  assert.equal((await consul.session.get(ID)).ID, ID);
  await consul.session.renew(ID);
  await consul.session.destroy(ID);
}

async function transactions(consul) {
  const value = Buffer.from("1").toString("base64");
  const answer = await consul.transaction.create([{ KV: { Verb: "set", Key: "txn/a", Value: value } }]);
  assert.equal(answer.Results.length, 1);
}

async function agent(consul) {
  await consul.agent.service.register({ name: "api", id: "api-1", port: 80, check: { ttl: "10s", name: "alive" } });
  assert.equal((await consul.agent.service.list())["api-1"].Port, 80);
  await consul.agent.check.pass("service:api-1");
  const healthy = await consul.health.service({ service: "api", passing: true });
  assert.deepEqual(healthy.map((one) => one.Service.ID), ["api-1"]);
  await consul.agent.service.maintenance({ id: "api-1", enable: true });
  await consul.agent.service.maintenance({ id: "api-1", enable: false });
  await consul.agent.service.deregister("api-1");
  assert((await consul.agent.self()).Config.Server);
  assert.equal((await consul.agent.members()).length, 1);
}

async function catalog(consul) {
  await consul.catalog.register({ node: "node-1", address: "10.0.0.1", service: { service: "db", port: 5432 } });
  assert((await consul.catalog.node.list()).some((node) => node.Node === "node-1"));
  assert.equal((await consul.catalog.service.nodes("db"))[0].ServicePort, 5432);
  await consul.catalog.deregister({ node: "node-1" });
  assert.deepEqual(await consul.catalog.datacenters(), ["dc1"]);
}

// The client's own watch repeats a blocking query.
function watch(consul) {
  return new Promise((resolve, reject) => {
    const watched = consul.watch({ method: consul.kv.get, options: { key: "watched" }, backoffFactor: 100 });
    const timer = setTimeout(() => reject(new Error("the watch saw no change")), 20000);
    watched.on("change", (entry) => {
      if (entry && entry.Value === "new") {
        clearTimeout(timer);
        watched.end();
        resolve();
      }
    });
    watched.on("error", () => {});
    consul.kv.set("watched", "old").then(() => setTimeout(() => consul.kv.set("watched", "new"), 300));
  });
}

async function others(consul) {
  assert(await consul.status.leader());
  const event = await consul.event.fire("deploy", "v2");
  assert.equal(event.Name, "deploy");
  const { ID } = await consul.query.create({ name: "some-db", service: { service: "db" } });
  assert.equal((await consul.query.execute({ query: ID })).Service, "db");
  await consul.query.destroy({ query: ID });
}

async function main() {
  const [host, port] = process.argv[2].split(":");
  const consul = new Consul({ host, port: Number(port) });
  const parts = [keyValue, sessions, transactions, agent, catalog, watch, others];
  let failed = 0;
  for (const part of parts) {
    try {
      await part(consul);
    } catch (error) {
      failed += 1;
      console.log(`node: ${part.name}: ${error}`);
    }
  }
  console.log(`node: ${parts.length - failed} of ${parts.length} parts pass`);
  process.exit(failed === 0 ? 0 : 1);
}

main();
