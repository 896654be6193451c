//! Executes the nodes of a template. Steps and output are counted, so that time and memory are
//! bounded.

use crate::error::{Source, TemplateError, excerpt};
use crate::format;
use crate::functions::{Function, Name};
use crate::limits::{MAX_STEPS, MAX_TEXT, MAX_VARIABLES};
use crate::output::Output;
use crate::syntax::{Branch, Command, Node, Operand, OperandKind, Pipeline, Range};
use crate::value::Value;

/// The number of bytes that a function processes for the cost of one step.
const BYTES_A_STEP: usize = 128;

/// Executes `nodes`, parsed from `source`, with `data` as dot and as `$`.
///
/// # Errors
/// If an action fails or a limit is exceeded.
pub(crate) fn run<'a>(
    source: Source<'a>,
    nodes: &[Node<'a>],
    data: &Value,
) -> Result<Output<'a>, TemplateError> {
    let mut evaluator = Evaluator {
        source,
        variables: vec![("$", data.clone())],
        output: Output::new(source),
        steps: 0,
        made: 0,
    };
    evaluator.nodes(data, nodes)?;
    Ok(evaluator.output)
}

struct Evaluator<'a> {
    source: Source<'a>,
    /// The variables in scope, innermost last.
    variables: Vec<(&'a str, Value)>,
    output: Output<'a>,
    steps: u32,
    /// The number of bytes of text written or created by functions.
    made: usize,
}

/// A position in the template for errors.
#[derive(Clone, Copy)]
struct Position {
    at: usize,
    span: (usize, usize),
}

impl From<(usize, usize)> for Position {
    fn from(span: (usize, usize)) -> Self {
        Position { at: span.0, span }
    }
}

type Evaluated<T> = Result<T, TemplateError>;

impl<'a> Evaluator<'a> {
    fn error(&self, place: Position, message: &str) -> TemplateError {
        self.source.executing(place.at, place.span, message)
    }

    fn spend(&mut self, place: Position, steps: usize) -> Evaluated<()> {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.steps = self.steps.saturating_add(steps);
        match self.steps <= MAX_STEPS {
            true => Ok(()),
            false => Err(self.error(place, &format!("the template takes over {MAX_STEPS} steps"))),
        }
    }

    fn charge(&mut self, place: Position, bytes: usize) -> Evaluated<()> {
        self.made = self.made.saturating_add(bytes);
        match self.made <= MAX_TEXT {
            true => Ok(()),
            false => {
                let message = format!("the template makes over {MAX_TEXT} bytes of text");
                Err(self.error(place, &message))
            }
        }
    }

    fn nodes(&mut self, dot: &Value, nodes: &[Node<'a>]) -> Evaluated<()> {
        for node in nodes {
            match node {
                Node::Text { start, text } => {
                    let place = Position::from((*start, start + text.len()));
                    self.spend(place, 1)?;
                    self.charge(place, text.len())?;
                    self.output.push(text, *start, true);
                }
                Node::Action(pipeline) => self.action(dot, pipeline)?,
                Node::Branch(branch) => self.branch(dot, branch)?,
                Node::Range(range) => self.range(dot, range)?,
            }
        }
        Ok(())
    }

    fn action(&mut self, dot: &Value, pipeline: &Pipeline<'a>) -> Evaluated<()> {
        let value = self.pipeline(dot, pipeline)?;
        if !pipeline.variables.is_empty() {
            return Ok(());
        }
        let place = Position::from(pipeline.span);
        self.charge(place, value.size())?;
        let mut text = String::new();
        match value {
            // Functions format `nil` differently.
            Value::Nil => text.push_str("<no value>"),
            value => {
                format::write(&mut text, &value).map_err(|message| self.error(place, &message))?;
            }
        }
        self.output.push(&text, place.at, false);
        Ok(())
    }

    fn branch(&mut self, dot: &Value, branch: &Branch<'a>) -> Evaluated<()> {
        let scope = self.variables.len();
        let mut chosen = (dot.clone(), &branch.otherwise);
        for (condition, body) in &branch.arms {
            let value = self.pipeline(dot, condition)?;
            if value.truth() {
                chosen = (if branch.sets_dot { value } else { dot.clone() }, body);
                break;
            }
        }
        self.nodes(&chosen.0, chosen.1)?;
        self.variables.truncate(scope);
        Ok(())
    }

    fn range(&mut self, dot: &Value, range: &Range<'a>) -> Evaluated<()> {
        let scope = self.variables.len();
        let place = Position::from(range.pipeline.span);
        let value = self.pipeline(dot, &range.pipeline)?;
        let count = match &value {
            Value::List(items) => i64::try_from(items.len()).unwrap_or(i64::MAX),
            Value::Int(_) if range.pipeline.variables.len() > 1 => {
                let message = "can't iterate over a number with more than one variable";
                return Err(self.error(place, message));
            }
            Value::Int(count) => *count,
            Value::Nil => 0,
            other => {
                let message = format!("range can't iterate over type {}", other.type_name());
                return Err(self.error(place, &message));
            }
        };
        if count <= 0 {
            self.nodes(dot, &range.otherwise)?;
        }
        for index in 0..count {
            self.spend(place, 1)?;
            let item = match &value {
                Value::List(items) => items[usize::try_from(index).unwrap_or_default()].clone(),
                _ => Value::Int(index),
            };
            self.bind(place, range, index, &item)?;
            let inner = self.variables.len();
            self.nodes(&item, &range.body)?;
            self.variables.truncate(inner);
        }
        self.variables.truncate(scope);
        Ok(())
    }

    /// Sets the variables of a `range` for one iteration.
    fn bind(
        &mut self,
        place: Position,
        range: &Range<'a>,
        index: i64,
        item: &Value,
    ) -> Evaluated<()> {
        match range.pipeline.variables.as_slice() {
            [] => Ok(()),
            [only] => self.assign(place, only, item.clone()),
            [first, second, ..] => {
                self.assign(place, first, Value::Int(index))?;
                self.assign(place, second, item.clone())
            }
        }
    }

    fn assign(&mut self, place: Position, name: &str, value: Value) -> Evaluated<()> {
        let mut known = self.variables.iter_mut().rev();
        match known.find(|(known, _)| *known == name) {
            Some((_, slot)) => {
                *slot = value;
                Ok(())
            }
            None => Err(self.error(place, &format!("undefined variable: {name}"))),
        }
    }

    fn pipeline(&mut self, dot: &Value, pipeline: &Pipeline<'a>) -> Evaluated<Value> {
        let mut last = None;
        for command in &pipeline.commands {
            last = Some(self.command(dot, command, last)?);
        }
        let value = last.unwrap_or(Value::Nil);
        for name in &pipeline.variables {
            if pipeline.assigns {
                self.assign(pipeline.span.into(), name, value.clone())?;
            } else {
                self.declare(pipeline.span.into(), name, value.clone())?;
            }
        }
        Ok(value)
    }

    fn declare(&mut self, place: Position, name: &'a str, value: Value) -> Evaluated<()> {
        if self.variables.len() == MAX_VARIABLES {
            let message = format!("over {MAX_VARIABLES} variables in scope");
            return Err(self.error(place, &message));
        }
        self.variables.push((name, value));
        Ok(())
    }

    fn command(
        &mut self,
        dot: &Value,
        command: &Command<'a>,
        last: Option<Value>,
    ) -> Evaluated<Value> {
        let place = Position::from(command.span);
        if let OperandKind::Function(function) = command.first.kind {
            return self.call(dot, function, &command.arguments, last, place);
        }
        if !command.arguments.is_empty() || last.is_some() {
            let (start, end) = command.first.span;
            let operand = excerpt(&self.source.text[start..end]);
            let message = format!("can't give argument to non-function {operand}");
            return Err(self.error(place, &message));
        }
        if matches!(command.first.kind, OperandKind::Nil) {
            return Err(self.error(place, "nil is not a command"));
        }
        self.operand(dot, &command.first)
    }

    fn operand(&mut self, dot: &Value, operand: &Operand<'a>) -> Evaluated<Value> {
        let place = Position {
            at: operand.at,
            span: operand.span,
        };
        self.spend(place, 1)?;
        let (value, path) = match &operand.kind {
            OperandKind::Dot => return Ok(dot.clone()),
            OperandKind::Nil => return Ok(Value::Nil),
            OperandKind::Literal(value) => return Ok(value.clone()),
            OperandKind::Function(function) => {
                return self.call(dot, function, &[], None, place);
            }
            OperandKind::Field(path) => (dot.clone(), path),
            OperandKind::Variable(name, path) => {
                let mut known = self.variables.iter().rev();
                match known.find(|(known, _)| known == name) {
                    Some((_, value)) => (value.clone(), path),
                    None => return Err(self.error(place, &format!("undefined variable: {name}"))),
                }
            }
            OperandKind::Group(inner, path) => (self.pipeline(dot, inner)?, path),
        };
        path.iter()
            .try_fold(value, |value, name| value.field(name))
            .map_err(|message| self.error(place, &message))
    }

    fn call(
        &mut self,
        dot: &Value,
        function: &Function,
        arguments: &[Operand<'a>],
        last: Option<Value>,
        place: Position,
    ) -> Evaluated<Value> {
        function
            .check_count(arguments.len() + usize::from(last.is_some()))
            .map_err(|message| self.error(place, &message))?;
        let mut values = Vec::with_capacity(arguments.len() + 1);
        for argument in arguments {
            let value = self.operand(dot, argument)?;
            let decides = match function.name {
                Name::And => !value.truth(),
                Name::Or => value.truth(),
                _ => false,
            };
            if decides {
                return Ok(value);
            }
            values.push(value);
        }
        values.extend(last);
        let looked_at: usize = values.iter().map(Value::size).sum();
        self.spend(place, 1 + looked_at / BYTES_A_STEP)?;
        let value = function.call(&values).map_err(|message| {
            let message = format!("error calling {}: {message}", function.word);
            self.error(place, &message)
        })?;
        if matches!(function.name, Name::Print | Name::Printf | Name::Println) {
            self.charge(place, value.size())?;
        }
        Ok(value)
    }
}
