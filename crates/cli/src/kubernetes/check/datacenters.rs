//! Findings about other datacenters, as the servers see them: whether they answer, and how the primary is followed.

use serde_json::Value;

use super::facts::ServerPod;
use super::finding::Finding;

const DATACENTERS: &str = "datacenters";
const REPLICATION: &str = "replication";

/// None for a mesh of one datacenter.
pub(super) fn findings(pods: &[ServerPod]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for pod in pods {
        let Some(Ok(api)) = &pod.api else { continue };
        let status = match &api.status {
            Ok(status) => status,
            Err(why) => {
                let what = format!("what pod {} knows of other datacenters", pod.name);
                findings.push(Finding::cannot_see(DATACENTERS, &what, why));
                break;
            }
        };
        let others = status["Datacenters"].as_array().into_iter().flatten();
        findings.extend(others.map(|other| datacenter(&pod.name, other)));
        findings.extend(replication(&pod.name, &status["Replication"]));
    }
    findings
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

fn datacenter(pod: &str, other: &Value) -> Finding {
    let (name, servers, alive) = (text(other, "Name"), &other["Servers"], &other["Alive"]);
    if alive == 0 {
        return Finding::failed(
            DATACENTERS,
            format!(
                "pod {pod}: none of {servers} servers of {name} answers: {}",
                text(other, "Error")
            ),
            "see with legate members -wan -detailed what each server says; through mesh gateways, check those of both \
             datacenters",
        );
    }
    let gateways = other["Gateways"].as_array().into_iter().flatten();
    let gateways: Vec<_> = gateways.filter_map(Value::as_str).collect();
    let through = match gateways.is_empty() {
        true => String::new(),
        false => format!(" through {}", gateways.join(" and ")),
    };
    let message = format!("pod {pod}: {alive} of {servers} servers of {name} answer{through}");
    match text(other, "RangeError") {
        "" => Finding::ok(DATACENTERS, message),
        error => Finding::warning(
            DATACENTERS,
            format!("{message}; what its proxies need of {name} is out of date: {error}"),
            "see the log of that server",
        ),
    }
}

/// Only the leader follows the primary.
fn replication(pod: &str, progress: &Value) -> Option<Finding> {
    if progress["Running"] != true {
        return None;
    }
    let source = text(progress, "Source");
    let (success, error) = (text(progress, "LastSuccess"), text(progress, "LastError"));
    // The times are RFC 3339 in UTC, which sorts as text.
    Some(match success > error {
        true => Finding::ok(
            REPLICATION,
            format!("pod {pod}: rows of {source} are here as of {success}"),
        ),
        false => Finding::failed(
            REPLICATION,
            format!(
                "pod {pod}: rows of {source} are not followed since {}: {}",
                if success.is_empty() {
                    "the start"
                } else {
                    success
                },
                text(progress, "LastErrorMessage")
            ),
            format!("check the way to {source} and the replication token"),
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::facts::ServerApi;
    use super::super::finding::Outcome;
    use super::*;

    fn found(status: Result<Value, String>) -> Vec<(Outcome, String)> {
        let api = ServerApi {
            chain: Vec::new(),
            trust_domain: String::new(),
            active_root: String::new(),
            status,
        };
        let pod = ServerPod {
            name: "s".to_owned(),
            image: String::new(),
            api: Some(Ok(api)),
        };
        let all = findings(&[pod]).into_iter();
        all.map(|one| (one.outcome, one.message)).collect()
    }

    #[test]
    fn other_datacenters_are_as_the_servers_say() {
        assert_eq!(found(Ok(json!({"Datacenters": []}))), []);
        let status = json!({
            "Datacenters": [
                {"Name": "dc2", "Servers": 2, "Alive": 1, "Gateways": ["10.0.0.1:8443"]},
                {"Name": "dc3", "Servers": 3, "Alive": 0, "Error": "refused"},
                {"Name": "dc4", "Servers": 1, "Alive": 1, "Gateways": [], "RangeError": "late"},
            ],
            "Replication": {
                "Source": "dc2", "Running": true, "LastSuccess": "2030-01-01T00:00:00Z",
                "LastError": "2030-01-02T00:00:00Z", "LastErrorMessage": "denied",
            },
        });
        let [two, three, four, replication] = &found(Ok(status))[..] else {
            panic!("there are four");
        };
        let answers = "pod s: 1 of 2 servers of dc2 answer through 10.0.0.1:8443";
        assert_eq!(*two, (Outcome::Ok, answers.to_owned()));
        assert!(
            three.0 == Outcome::Failed
                && three
                    .1
                    .contains("none of 3 servers of dc3 answers: refused")
        );
        assert!(four.0 == Outcome::Warning && four.1.contains("out of date: late"));
        assert!(replication.0 == Outcome::Failed && replication.1.ends_with(": denied"));
        let hidden = found(Err("403".to_owned()));
        assert_eq!(hidden[0].0, Outcome::Unchecked);
    }
}
