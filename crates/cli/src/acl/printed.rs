//! How the commands of `acl` print what servers answer.

use clap::Args;
use serde_json::Value;

use crate::output::{Format, line, print_json};

/// In which form results are printed.
#[derive(Args)]
pub(crate) struct Printed {
    /// Print hashes and indexes, too
    #[arg(long)]
    pub(crate) meta: bool,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    pub(crate) format: Format,
}

impl Printed {
    /// Prints a value, as text by `pretty`.
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

    /// Prints a list, each element by `pretty`, with `between` two of them.
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

/// Variables with the names that Consul's command line prints; servers write them in small letters.
fn with_names(mut value: Value) -> Value {
    match &mut value {
        Value::Array(values) => values
            .iter_mut()
            .for_each(|one| *one = with_names(one.take())),
        Value::Object(fields) => {
            // The id of a template is made by servers, and no command prints it.
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
