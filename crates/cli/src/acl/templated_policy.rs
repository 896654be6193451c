//! `acl templated-policy`: shows policies that are generated from templates.

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::links::all_templated_policies;
use super::noun::{Noun, print};
use super::shown;
use super::table::{
    FORMAT, Flag, Given, META, NAME,
    Takes::{Many, Text},
};
use crate::output::text;
use crate::server_api::encoded_path;

#[rustfmt::skip] // One row a line.
const PREVIEW: &[Flag] = &[
    ("file", Text("FILE"), "File with a templated policy, in HCL or JSON"),
    ("var", Many("NAME:VALUE"), "Variable; may be repeated"),
];

pub(super) static NOUN: Noun = Noun {
    command: "templated-policy",
    about: "Show policies that are generated from templates",
    plural: "templated-policies",
    id: "TemplateName",
    builtin: &[],
    shown: |policy, meta, _| shown::templated_policy(policy, meta),
    between: "",
    commands: &[
        ("list", &[FORMAT], |given| Box::pin(list(given))),
        ("read", &[NAME, META, FORMAT], |given| Box::pin(read(given))),
        ("preview", &[NAME, PREVIEW, FORMAT], |given| {
            Box::pin(preview(given))
        }),
    ],
};

async fn list(given: Given) -> anyhow::Result<()> {
    let policies = given.connect()?.get(NOUN.all()).value().await;
    let policies = policies.context("Failed to retrieve the templated policies list")?;
    let names = |policies: &Value, _| {
        let policies = policies.as_object().into_iter().flatten();
        let mut names: Vec<String> = policies
            .map(|(_, policy)| format!("{}\n", text(policy, "TemplateName")))
            .collect();
        names.sort();
        names.concat()
    };
    print(&policies, &given, names)
}

async fn read(given: Given) -> anyhow::Result<()> {
    let name = given.required("name", "Must specify the -name parameter")?;
    let path = format!("/v1/acl/templated-policy/name/{}", encoded_path(name));
    NOUN.read(&given.connect()?, path, ("name", name), &given)
        .await
}

async fn preview(given: Given) -> anyhow::Result<()> {
    let (name, file) = (given.text("name"), given.text("file"));
    ensure!(
        !name.is_empty() || !file.is_empty(),
        "Cannot preview a templated policy without specifying -name or -file"
    );
    let policies = all_templated_policies(name, file, &given.all("var"))?;
    let [policy] = policies.as_slice() else {
        bail!("Can only preview a single templated policy at a time.");
    };
    let name = encoded_path(text(policy, "TemplateName"));
    let path = format!("/v1/acl/templated-policy/preview/{name}");
    let api = given.connect()?;
    let made = api.post(path).json(&policy["TemplateVariables"]);
    let made = made.value().await;
    let made = made.context("Failed to generate the templated policy preview")?;
    print(&made, &given, |policy, meta| {
        shown::policy(policy, meta, false)
    })
}
