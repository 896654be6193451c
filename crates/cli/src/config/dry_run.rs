//! Formats the response to a dry run: one line per field, `+` for additions and `-` for removals.

use std::fmt::Write;

use serde_json::Value;

/// Formats a response.
pub(super) fn text(answer: &Value) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write_all(&mut out, answer);
    out
}

fn write_all(out: &mut String, answer: &Value) -> std::fmt::Result {
    if answer["Written"] == false {
        return writeln!(
            out,
            "Nothing would be written: the modify index of the entry is not -modify-index."
        );
    }
    let proxies = &answer["Proxies"];
    let (chains, more) = (list(&answer["Chains"]), count(&answer["MoreChains"]));
    writeln!(
        out,
        "Nothing was written. Discovery chains that would change: {}. Proxies that would change: {} of \
         {} that are connected to this server.",
        chains.len() as u64 + more,
        count(&proxies["Changed"]),
        count(&proxies["Connected"]),
    )?;
    for (field, what) in [
        ("Hidden", "that change and are not visible to this token"),
        ("Waiting", "waiting for their first configuration"),
        ("NotComputed", "not computed, because there are too many"),
    ] {
        match count(&proxies[field]) {
            0 => {}
            some => writeln!(out, "Proxies {what}: {some}.")?,
        }
    }
    for chain in chains {
        writeln!(out, "\ndiscovery chain {}", name(&chain["Service"]))?;
        fields(out, &chain["Fields"])?;
    }
    if more > 0 {
        writeln!(out, "\nMore discovery chains: {more}")?;
    }
    for group in list(&answer["Changes"]) {
        let named: Vec<&str> = list(&group["Proxies"]).iter().map(name).collect();
        writeln!(
            out,
            "\n{} {}: {}{}",
            count(&group["Count"]),
            name(&group["Kind"]),
            named.join(", "),
            if count(&group["Count"]) > named.len() as u64 {
                ", ..."
            } else {
                ""
            },
        )?;
        for resource in list(&group["Resources"]) {
            let part = |field: &str| name(&resource[field]).to_owned();
            writeln!(
                out,
                "  {} {} {}",
                part("Type"),
                part("Name"),
                part("Change")
            )?;
            fields(out, &resource["Fields"])?;
            if !list(&resource["AccessRules"]).is_empty() {
                writeln!(out, "   access rules:")?;
                fields(out, &resource["AccessRules"])?;
            }
        }
        for failure in list(&group["Failures"]) {
            writeln!(out, "  cannot be generated: {}", name(failure))?;
        }
    }
    if answer["Truncated"] == true {
        writeln!(out, "\nThere are more differences than these.")?;
    }
    Ok(())
}

fn fields(out: &mut String, changes: &Value) -> std::fmt::Result {
    for change in list(changes) {
        let path = name(&change["Path"]);
        for (sign, field) in [('-', "Before"), ('+', "After")] {
            if let Some(value) = change.get(field) {
                writeln!(
                    out,
                    "    {sign} {path}{}{value}",
                    if path.is_empty() { "" } else { ": " }
                )?;
            }
        }
    }
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn name(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn a_response_has_a_line_for_each_field() {
        let answer = json!({
            "Index": 7, "Written": true, "MoreChains": 0,
            "Chains": [{"Service": "web", "Fields": [{"Path": "Protocol", "Before": "tcp", "After": "http"}]}],
            "Proxies": {"Connected": 3, "Changed": 2, "Hidden": 1, "Waiting": 0, "NotComputed": 0},
            "Changes": [{"Kind": "connect-proxy", "Count": 1, "Proxies": ["n1/web"], "Failures": [],
                "Resources": [{"Type": "routes", "Name": "api", "Change": "added",
                    "Fields": [{"Path": "", "After": {"name": "api"}}], "AccessRules": []}]}],
            "Truncated": false,
        });
        let text = super::text(&answer);
        for line in [
            "Discovery chains that would change: 1. Proxies that would change: 2 of 3",
            "Proxies that change and are not visible to this token: 1.",
            "discovery chain web",
            "    - Protocol: \"tcp\"",
            "    + Protocol: \"http\"",
            "1 connect-proxy: n1/web",
            "  routes api added",
            "    + {\"name\":\"api\"}",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(super::text(&json!({"Written": false})).contains("Nothing would be written"));
    }
}
