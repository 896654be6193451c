//! Intentions by id, Consul's legacy API.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::http_client::{Client, Reply, start};

const ALL: &str = "/v1/connect/intentions";

async fn create(client: &Client, intention: &Value) -> Reply {
    client.send(Method::POST, ALL, &intention.to_string()).await
}

#[tokio::test]
async fn an_intention_with_an_id_is_one_of_the_entry() {
    let (_server, client) = start(|_| {}).await;
    let mut intention = json!({
        "SourceNS": "default", "SourceName": "api", "DestinationNS": "default",
        "DestinationName": "db", "Action": "allow", "Meta": { "by": "me" },
    });
    let made = create(&client, &intention).await.json();
    let one = format!("{ALL}/{}", made["ID"].as_str().unwrap());
    let shown = client.get(&one).await.json();
    assert_eq!(
        (&shown["ID"], &shown["Precedence"]),
        (&made["ID"], &json!(9))
    );
    assert_eq!(shown["Meta"], json!({ "by": "me" }));
    let made_at = shown["CreatedAt"].clone();
    assert!(
        made_at.is_string() && made_at == shown["UpdatedAt"],
        "{shown}"
    );
    assert_eq!(client.get(ALL).await.json(), json!([shown]));
    let exact = client
        .get(&format!("{ALL}/exact?source=api&destination=db"))
        .await;
    assert_eq!(exact.json(), shown);

    let again = create(&client, &intention).await;
    assert_eq!(again.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        again.text().starts_with("duplicate intention found"),
        "{}",
        again.text()
    );
    // Writes back the intention as read, with another source.
    intention = shown;
    intention["SourceName"] = json!("web");
    assert_eq!(client.write(&one, &intention).await, made);
    let shown = client.get(&one).await.json();
    assert_eq!(
        (&shown["SourceName"], &shown["ID"]),
        (&json!("web"), &made["ID"])
    );
    assert_eq!(shown["CreatedAt"], made_at);
    assert_ne!(shown["UpdatedAt"], made_at);
    assert_eq!(client.get(ALL).await.json().as_array().unwrap().len(), 1);
    intention["DestinationName"] = json!("other");
    let moved = client.put(&one, &intention).await;
    assert!(
        moved.text().starts_with("Cannot modify Destination"),
        "{}",
        moved.text()
    );

    assert_eq!(client.delete(&one).await.json(), json!(true));
    let gone = client.get(&one).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    assert_eq!(gone.text(), "Intention not found");
    let unknown = client.delete(&one).await;
    assert!(
        unknown
            .text()
            .starts_with("Cannot delete non-existent intention")
    );
    let no_id = client.get(&format!("{ALL}/hello")).await;
    assert_eq!(no_id.status, StatusCode::BAD_REQUEST);
    assert!(no_id.text().contains("UUID"), "{}", no_id.text());
}

#[tokio::test]
async fn entries_written_as_config_have_no_ids() {
    let (_server, client) = start(|_| {}).await;
    let intention = json!({ "SourceName": "api", "DestinationName": "db", "Action": "allow" });
    let made = create(&client, &intention).await.json();
    let path = "/v1/config/service-intentions/db";
    let entry = client.get(path).await.json();
    assert_eq!(entry["Sources"][0]["LegacyID"], made["ID"]);
    let written = client.put("/v1/config", &entry).await;
    assert_eq!(written.json(), json!(true));
    assert_eq!(
        written.header("x-legate-not-served"),
        "Sources[0].LegacyCreateTime, Sources[0].LegacyID, Sources[0].LegacyUpdateTime"
    );
    assert_eq!(
        client.get(path).await.json()["Sources"][0].get("LegacyID"),
        None
    );
    let other = json!({ "SourceName": "web", "DestinationName": "db", "Action": "allow" });
    let refused = create(&client, &other).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        refused
            .text()
            .starts_with("cannot use legacy intention API"),
        "{}",
        refused.text()
    );
}
