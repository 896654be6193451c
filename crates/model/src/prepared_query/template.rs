//! Templates of queries: texts with `${name.full}` or `${match(1)}`, rendered with the requested
//! name.
//!
//! The language is a subset of HIL, which Consul uses: variables, `match`, quoted texts and numbers.
//! Operators, conditions and lists are refused.

use legate_filter::Pattern;
use serde::{Deserialize, Serialize};

use super::service_query::ServiceQuery;

/// The maximum size of the texts of a rendered query, in bytes.
const MAX_RENDERED: usize = 64 * 1024;

/// The maximum number of groups in a regular expression. The memory for a match is proportional to
/// the size of the expression multiplied by its groups, and any caller may execute a query.
const MAX_GROUPS: usize = 32;

/// The maximum nesting depth of quoted texts.
const MAX_DEPTH: usize = 16;

/// The known variables, for error messages.
const VARIABLES: &str = "name.full, name.prefix, name.suffix, agent.segment";

/// The only template type: the template's name is a prefix of the names that it applies to.
const NAME_PREFIX_MATCH: &str = "name_prefix_match";

/// Template settings of a query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct QueryTemplate {
    /// `name_prefix_match`, or empty for a plain query.
    pub r#type: String,
    /// Regular expression whose groups are available as `${match(1)}`.
    pub regexp: String,
    /// Whether tags that render to an empty text are removed.
    pub remove_empty_tags: bool,
}

/// A template that cannot be rendered. The texts are Consul's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Unknown type.
    #[error("Bad Template.Type '{0}'")]
    Type(String),
    /// Invalid regular expression.
    #[error("Bad Regexp: {0}")]
    Regexp(String),
    /// The regular expression has this many groups, which is too many.
    #[error("Template.Regexp has {0} groups, more than {MAX_GROUPS}")]
    Groups(usize),
    /// Syntax error in a text.
    #[error("Bad format '{text}' in Service{path}: parse error at 1:{column}: {reason}")]
    Format {
        /// The text.
        text: String,
        /// The field that contains the text.
        path: String,
        /// Column in the text, from 1, in characters.
        column: usize,
        /// The problem.
        reason: String,
    },
    /// A text uses an unknown variable or function.
    #[error("Bad evaluation for '{text}' in Service{path}: 1:{column}: {reason}")]
    Evaluation {
        /// The text.
        text: String,
        /// The field that contains the text.
        path: String,
        /// Column in the text, from 1, in characters.
        column: usize,
        /// The problem.
        reason: String,
    },
    /// The rendered query is too large.
    #[error("the texts that the template becomes have more than {MAX_RENDERED} bytes")]
    Large,
}

impl QueryTemplate {
    /// Renders a template's query for a name, which starts with `prefix` or equals the template's
    /// own.
    pub(super) fn fill(
        &self,
        prefix: &str,
        name: &str,
        service: &mut ServiceQuery,
    ) -> Result<(), TemplateError> {
        if self.r#type != NAME_PREFIX_MATCH {
            return Err(TemplateError::Type(self.r#type.clone()));
        }
        let groups = match self.regexp.as_str() {
            "" => Vec::new(),
            text => {
                let pattern = Pattern::new(text).map_err(TemplateError::Regexp)?;
                match pattern.group_count() {
                    count if count > MAX_GROUPS => return Err(TemplateError::Groups(count)),
                    _ => pattern.groups(name),
                }
            }
        };
        let scope = Scope {
            full: name,
            prefix,
            suffix: name.strip_prefix(prefix).unwrap_or(name),
            groups,
        };
        let mut total = 0;
        for_each_text(service, |path, text| {
            let filled = fill(text, &scope).map_err(|fault| fault.at(text, path))?;
            total += filled.len();
            *text = filled;
            match total > MAX_RENDERED {
                true => Err(TemplateError::Large),
                false => Ok(()),
            }
        })?;
        if self.remove_empty_tags
            && let Some(tags) = &mut service.tags
        {
            tags.retain(|tag| !tag.is_empty());
        }
        Ok(())
    }
}

/// Visits every text of a query with its path for error messages. Keys of maps are not visited.
fn for_each_text(
    service: &mut ServiceQuery,
    mut visit: impl FnMut(&str, &mut String) -> Result<(), TemplateError>,
) -> Result<(), TemplateError> {
    visit(".Service", &mut service.service)?;
    let failover = &mut service.failover;
    for (at, name) in failover.datacenters.iter_mut().flatten().enumerate() {
        visit(&format!(".Failover.Datacenters[{at}]"), name)?;
    }
    for (at, target) in failover.targets.iter_mut().flatten().enumerate() {
        let path = format!(".Failover.Targets[{at}].Datacenter");
        visit(&path, &mut target.datacenter)?;
        visit(&format!(".Failover.Targets[{at}].Peer"), &mut target.peer)?;
    }
    for (at, id) in service.ignore_check_ids.iter_mut().flatten().enumerate() {
        visit(&format!(".IgnoreCheckIDs[{at}]"), id)?;
    }
    visit(".Near", &mut service.near)?;
    visit(".Peer", &mut service.peer)?;
    for (at, tag) in service.tags.iter_mut().flatten().enumerate() {
        visit(&format!(".Tags[{at}]"), tag)?;
    }
    for (key, value) in service.node_meta.iter_mut().flatten() {
        visit(&format!(".NodeMeta[{key}]"), value)?;
    }
    for (key, value) in service.service_meta.iter_mut().flatten() {
        visit(&format!(".ServiceMeta[{key}]"), value)?;
    }
    Ok(())
}

/// Variables and functions for rendering.
struct Scope<'a> {
    full: &'a str,
    prefix: &'a str,
    suffix: &'a str,
    /// The groups of the regular expression's match; empty without a match.
    groups: Vec<String>,
}

impl Scope<'_> {
    fn variable(&self, name: &str) -> Option<&str> {
        Some(match name {
            "name.full" => self.full,
            "name.prefix" => self.prefix,
            "name.suffix" => self.suffix,
            // Only Consul Enterprise has network segments.
            "agent.segment" => "",
            _ => return None,
        })
    }
}

/// A problem with a text, and its byte offset.
enum Fault {
    Format(usize, String),
    Evaluation(usize, String),
}

impl Fault {
    fn at(self, text: &str, path: &str) -> TemplateError {
        let column = |at: usize| text.chars().count() - text[at..].chars().count() + 1;
        let (text, path) = (text.to_owned(), path.to_owned());
        match self {
            Fault::Format(at, reason) => TemplateError::Format {
                column: column(at),
                text,
                path,
                reason,
            },
            Fault::Evaluation(at, reason) => TemplateError::Evaluation {
                column: column(at),
                text,
                path,
                reason,
            },
        }
    }
}

fn fill(text: &str, scope: &Scope<'_>) -> Result<String, Fault> {
    let mut reader = Reader { text, at: 0, scope };
    reader.template(0)
}

/// Parser of a text.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    scope: &'a Scope<'a>,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    /// Consumes a text if it comes next.
    fn take(&mut self, text: &str) -> bool {
        let is_next = self.rest().starts_with(text);
        if is_next {
            self.at += text.len();
        }
        is_next
    }

    fn skip_spaces(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn expected<T>(&self, what: &str) -> Result<T, Fault> {
        let found = match self.peek() {
            Some(next) => format!("{:?}", next.to_string()),
            None => "end of string".to_owned(),
        };
        let reason = format!("expected {what} but found {found}");
        Err(Fault::Format(self.at, reason))
    }

    /// Parses literal text with `${…}` up to the end or, inside of quotes, up to the closing quote.
    fn template(&mut self, depth: usize) -> Result<String, Fault> {
        let quoted = depth > 0;
        let mut out = String::new();
        loop {
            if self.take("$$") {
                out.push('$');
            } else if self.take("${") {
                out.push_str(&self.interpolation(depth)?);
            } else {
                match self.next() {
                    None if quoted => return self.expected("'\"'"),
                    None => return Ok(out),
                    Some('"') if quoted => return Ok(out),
                    Some('\\') if quoted => match self.next() {
                        Some('n') => out.push('\n'),
                        Some(c @ ('"' | '\\')) => out.push(c),
                        _ => return self.expected("an escape sequence"),
                    },
                    Some(c) => out.push(c),
                }
            }
        }
    }

    fn interpolation(&mut self, depth: usize) -> Result<String, Fault> {
        let value = self.expression(depth)?;
        self.skip_spaces();
        if self.take("}") {
            return Ok(value);
        }
        self.refuse_operator()?;
        self.expected("\"}\"")
    }

    fn refuse_operator(&self) -> Result<(), Fault> {
        match self.peek().filter(|next| "+-*/%?<>=!&|[".contains(*next)) {
            None => Ok(()),
            Some(operator) => Err(Fault::Evaluation(
                self.at,
                format!("the operator {operator} is not served: name a variable, or match(1)"),
            )),
        }
    }

    /// Parses an expression; the position is after it.
    fn expression(&mut self, depth: usize) -> Result<String, Fault> {
        self.skip_spaces();
        let start = self.at;
        if depth >= MAX_DEPTH {
            let reason = "texts in quotes are nested too deep".to_owned();
            return Err(Fault::Format(start, reason));
        }
        if self.take("\"") {
            return self.template(depth + 1);
        }
        let is_part = |c: char| c.is_alphanumeric() || "_.".contains(c);
        let negative = self.take("-");
        let word = self.rest();
        let word = &word[..word.find(|c| !is_part(c)).unwrap_or(word.len())];
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        if word.is_empty() || (negative && !is_number) {
            return self.expected("expression");
        }
        self.at += word.len();
        if is_number || ["true", "false"].contains(&word) {
            return Ok(self.text[start..self.at].to_owned());
        }
        self.skip_spaces();
        if self.take("(") {
            return self.call(word, start, depth);
        }
        match self.scope.variable(word) {
            Some(value) => Ok(value.to_owned()),
            None => Err(Fault::Evaluation(
                start,
                format!("unknown variable accessed: {word} (known: {VARIABLES})"),
            )),
        }
    }

    /// Evaluates a function call after its `(`. The only function is `match`: a group of the regular
    /// expression, empty if the group does not exist.
    fn call(&mut self, function: &str, start: usize, depth: usize) -> Result<String, Fault> {
        let fault = |reason: String| Err(Fault::Evaluation(start, reason));
        if function != "match" {
            return fault(format!(
                "unknown function called: {function} (known: match)"
            ));
        }
        let number = self.expression(depth + 1)?;
        self.skip_spaces();
        if !self.take(")") {
            self.refuse_operator()?;
            return self.expected("\")\"");
        }
        match number.parse::<i64>() {
            Ok(number) => {
                let at = usize::try_from(number).ok();
                let group = at.and_then(|at| self.scope.groups.get(at));
                Ok(group.cloned().unwrap_or_default())
            }
            Err(_) => fault(format!("match: {number:?} is not a whole number")),
        }
    }
}
