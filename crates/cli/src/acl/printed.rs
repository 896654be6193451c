//! Prints the results of `acl` commands as text or JSON.

use clap::Args;
use serde_json::Value;

use crate::output::{Format, line, print_json};

/// Output options.
#[derive(Args)]
pub(crate) struct Printed {
    /// Print hashes and indexes as well
    #[arg(long)]
    pub(crate) meta: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    pub(crate) format: Format,
}

impl Printed {
    /// Prints a value as JSON, or as text formatted by `pretty`.
    pub(super) fn print(
        &self,
        value: &Value,
        pretty: impl Fn(&Value, bool) -> String,
    ) -> anyhow::Result<()> {
        if self.format == Format::Json {
            return print_json(&with_names(value.clone()));
        }
        match pretty(value, self.meta) {
            text if text.is_empty() => Ok(()),
            text => line(&text),
        }
    }

    /// Prints a list, each element formatted by `pretty` and separated by `between`.
    pub(super) fn print_list(
        &self,
        values: &Value,
        between: &str,
        pretty: impl Fn(&Value, bool) -> String,
    ) -> anyhow::Result<()> {
        let all = |values: &Value, meta| {
            let values = values.as_array().into_iter().flatten();
            let texts: Vec<String> = values.map(|value| pretty(value, meta)).collect();
            texts.join(between)
        };
        self.print(values, all)
    }
}

/// Renames variables to what Consul's command line prints; servers write them in lower case.
fn with_names(mut value: Value) -> Value {
    match &mut value {
        Value::Array(values) => values
            .iter_mut()
            .for_each(|one| *one = with_names(one.take())),
        Value::Object(fields) => {
            // Servers generate the id of a template, and no command prints it.
            fields.remove("TemplateID");
            for (key, field) in fields.iter_mut() {
                *field = with_names(field.take());
                let variables = matches!(key.as_str(), "TemplateVariables" | "BindVars");
                if let Some(variables) = field.as_object_mut().filter(|_| variables)
                    && let Some(name) = variables.remove("name")
                {
                    variables.insert("Name".to_owned(), name);
                }
            }
        }
        _ => {}
    }
    value
}
