//! Label selectors: `a=b,c!=d,e in (x,y),f notin (z),g,!h,n>3`.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::{LENGTH_MAX, SelectorError};
use crate::names;

/// A parsed label selector: every requirement must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    condition: Condition,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Exists,
    Absent,
    /// `=`, `==` and `in`.
    In(BTreeSet<String>),
    /// `!=` and `notin`; holds where the label is absent.
    NotIn(BTreeSet<String>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    pub fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
        if text.len() > LENGTH_MAX {
            return Err(SelectorError::TooLong);
        }
        Parser {
            tokens: tokens(text),
            next: 0,
        }
        .selector()
    }

    /// Whether the selector matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether the object's `metadata.labels` meet every requirement.
    pub fn matches(&self, object: &Value) -> bool {
        if self.is_empty() {
            return true;
        }
        let labels = object.pointer("/metadata/labels");
        self.requirements.iter().all(|requirement| {
            let value = labels
                .and_then(|labels| labels.get(&requirement.key))
                .and_then(Value::as_str);
            requirement.condition.holds(value)
        })
    }
}

impl Condition {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Condition::Exists => value.is_some(),
            Condition::Absent => value.is_none(),
            Condition::In(values) => value.is_some_and(|value| values.contains(value)),
            Condition::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Condition::Above(bound) => number().is_some_and(|number| number > *bound),
            Condition::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{requirement}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let (values, one, many) = match &self.condition {
            Condition::Exists => return write!(f, "{key}"),
            Condition::Absent => return write!(f, "!{key}"),
            Condition::Above(bound) => return write!(f, "{key}>{bound}"),
            Condition::Below(bound) => return write!(f, "{key}<{bound}"),
            Condition::In(values) => (values, "=", "in"),
            Condition::NotIn(values) => (values, "!=", "notin"),
        };
        match values.iter().collect::<Vec<_>>().as_slice() {
            [value] => write!(f, "{key}{one}{value}"),
            values => {
                write!(f, "{key} {many} (")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index > 0 { "," } else { "" })?;
                }
                f.write_str(")")
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    /// `!`, `!=`, `=`, `==`, `<`, `>`, `(`, `)`, `,` or a run of symbols that is none of them.
    Symbol(&'a str),
    End,
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Token::Word(text) | Token::Symbol(text) => text,
            Token::End => "",
        }
    }
}

fn is_symbol(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while let Some(first) = rest.chars().next() {
        let length = if is_symbol(first) {
            if rest.starts_with("!=") || rest.starts_with("==") {
                2
            } else {
                1
            }
        } else {
            rest.find(|c| is_symbol(c) || is_space(c))
                .unwrap_or(rest.len())
        };
        let (token, tail) = rest.split_at(length);
        tokens.push(if is_symbol(first) {
            Token::Symbol(token)
        } else {
            Token::Word(token)
        });
        rest = tail.trim_start_matches(is_space);
    }
    tokens
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    next: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens.get(self.next).copied().unwrap_or(Token::End)
    }

    fn take(&mut self) -> Token<'a> {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn selector(mut self) -> Result<LabelSelector, SelectorError> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::End if requirements.is_empty() => break,
                Token::Word(_) | Token::Symbol("!") => {
                    requirements.push(self.requirement().map_err(SelectorError::Requirement)?);
                }
                other if requirements.is_empty() => {
                    return Err(unexpected(other, "!, identifier, or 'end of string'"));
                }
                other => return Err(unexpected(other, "identifier after ','")),
            }
            match self.take() {
                Token::End => break,
                Token::Symbol(",") => {}
                other => return Err(unexpected(other, "',' or 'end of string'")),
            }
        }
        Ok(LabelSelector { requirements })
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek() == Token::Symbol("!");
        if absent {
            self.take();
        }
        let key = match self.take() {
            Token::Word(key) => key.to_owned(),
            other => return Err(found(other, "identifier")),
        };
        invalid("<nil>", &key, names::qualified_name(&key))?;
        let condition = match self.peek() {
            _ if absent => Condition::Absent,
            Token::End | Token::Symbol(",") => Condition::Exists,
            _ => match self.take() {
                Token::Symbol("=" | "==") => Condition::In(BTreeSet::from([self.value(&key)?])),
                Token::Symbol("!=") => Condition::NotIn(BTreeSet::from([self.value(&key)?])),
                Token::Word("in") => Condition::In(self.values(&key)?),
                Token::Word("notin") => Condition::NotIn(self.values(&key)?),
                Token::Symbol(">") => Condition::Above(self.number(&key)?),
                Token::Symbol("<") => Condition::Below(self.number(&key)?),
                other => return Err(found(other, "in, notin, =, ==, !=, gt, lt")),
            },
        };
        Ok(Requirement { key, condition })
    }

    /// The value after `=`; nothing there means the empty string.
    fn value(&mut self, key: &str) -> Result<String, String> {
        let value = match self.peek() {
            Token::End | Token::Symbol(",") => String::new(),
            _ => match self.take() {
                Token::Word(value) => value.to_owned(),
                other => return Err(found(other, "identifier")),
            },
        };
        check_value(key, 0, value)
    }

    fn number(&mut self, key: &str) -> Result<i64, String> {
        let value = self.value(key)?;
        value.parse().map_err(|_| {
            format!("values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer")
        })
    }

    /// `(a,b)`; an empty place is the empty string.
    fn values(&mut self, key: &str) -> Result<BTreeSet<String>, String> {
        match self.take() {
            Token::Symbol("(") => {}
            other => return Err(found(other, "'('")),
        }
        let mut values = BTreeSet::new();
        for index in 0.. {
            let value = match self.peek() {
                Token::Word(value) => {
                    self.take();
                    value.to_owned()
                }
                Token::End => return Err(found(Token::End, "',', ')' or identifier")),
                Token::Symbol(_) => String::new(),
            };
            values.insert(check_value(key, index, value)?);
            match self.take() {
                Token::Symbol(",") => {}
                Token::Symbol(")") => break,
                other => return Err(found(other, "',' or ')'")),
            }
        }
        Ok(values)
    }
}

fn check_value(key: &str, index: usize, value: String) -> Result<String, String> {
    invalid(
        &format!("values[{index}][{key}]"),
        &value,
        names::label_value(&value),
    )?;
    Ok(value)
}

fn invalid(path: &str, value: &str, wrong: Vec<String>) -> Result<(), String> {
    if wrong.is_empty() {
        return Ok(());
    }
    let errors: Vec<String> = wrong
        .iter()
        .map(|why| format!("{path}: Invalid value: {value:?}: {why}"))
        .collect();
    Err(match errors.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    })
}

fn found(token: Token<'_>, expected: &str) -> String {
    format!("found '{}', expected: {expected}", token.text())
}

fn unexpected(token: Token<'_>, expected: &str) -> SelectorError {
    SelectorError::Syntax(found(token, expected))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn matches(selector: &str, labels: &Value) -> bool {
        LabelSelector::parse(selector)
            .unwrap()
            .matches(&json!({ "metadata": { "labels": labels } }))
    }

    #[test]
    fn selects() {
        let labels = json!({"app": "web", "tier": "", "n": "5", "x.io/y": "z"});
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            (" app = web ", true),
            ("app=db", false),
            ("app!=db", true),
            ("gone!=db", true),
            ("app in (web,db)", true),
            ("app in (db)", false),
            ("app notin (db)", true),
            ("gone notin (db)", true),
            ("gone in (db)", false),
            ("app", true),
            ("!app", false),
            ("!gone", true),
            ("gone", false),
            ("tier=", true),
            ("tier in (,)", true),
            ("tier in ()", true),
            ("tier=,app", true),
            ("n>4", true),
            ("n>5", false),
            ("n<6,app", true),
            ("app>1", false),
            ("x.io/y=z,app in (web),!no,n", true),
            ("app=web,tier=x", false),
            ("in=a", false),
            ("app in (in,notin,web)", true),
        ] {
            assert_eq!(matches(selector, &labels), expected, "{selector}");
        }
        assert!(!matches("a", &json!(null)));
        assert!(matches("!a", &json!([1])));
    }

    #[test]
    fn refuses() {
        let table: Vec<String> = [
            "=",
            "a=b,",
            ",a",
            "a,,b",
            "a b",
            "a=b c",
            "!a=b",
            "a in b",
            "a in (",
            "a in (b",
            "a in (b c)",
            "a>x",
            "a=b d",
            "!",
            "-a=b",
            "a/b/c",
            "a=-b",
            "a in (b,-c)",
            "a===b",
            "a=(b)",
            "((",
            "a=b)",
        ]
        .iter()
        .map(|selector| {
            format!(
                "{selector} => {}",
                LabelSelector::parse(selector).unwrap_err()
            )
        })
        .collect();
        insta::assert_snapshot!(table.join("\n"), @r#"
= => found '=', expected: !, identifier, or 'end of string'
a=b, => found '', expected: identifier after ','
,a => found ',', expected: !, identifier, or 'end of string'
a,,b => found ',', expected: identifier after ','
a b => unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt
a=b c => found 'c', expected: ',' or 'end of string'
!a=b => found '=', expected: ',' or 'end of string'
a in b => unable to parse requirement: found 'b', expected: '('
a in ( => unable to parse requirement: found '', expected: ',', ')' or identifier
a in (b => unable to parse requirement: found '', expected: ',' or ')'
a in (b c) => unable to parse requirement: found 'c', expected: ',' or ')'
a>x => unable to parse requirement: values[0]: Invalid value: "x": for 'Gt', 'Lt' operators, the value must be an integer
a=b d => found 'd', expected: ',' or 'end of string'
! => unable to parse requirement: found '', expected: identifier
-a=b => unable to parse requirement: <nil>: Invalid value: "-a": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
a/b/c => unable to parse requirement: <nil>: Invalid value: "a/b/c": a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')
a=-b => unable to parse requirement: values[0][a]: Invalid value: "-b": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
a in (b,-c) => unable to parse requirement: values[1][a]: Invalid value: "-c": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
a===b => unable to parse requirement: found '=', expected: identifier
a=(b) => unable to parse requirement: found '(', expected: identifier
(( => found '(', expected: !, identifier, or 'end of string'
a=b) => found ')', expected: ',' or 'end of string'
"#);
        assert_eq!(
            LabelSelector::parse(&"a".repeat(LENGTH_MAX + 1)),
            Err(SelectorError::TooLong)
        );
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in ".{0,60}") {
            if let Ok(selector) = LabelSelector::parse(&text) {
                prop_assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
            }
        }

        #[test]
        fn grammatical_text_round_trips(terms in prop::collection::vec(
            "(!?[a-c]|[a-c] ?(=|==|!=) ?[a-c]?|[a-c] (in|notin) \\( ?[a-c]?(, ?[a-c]?){0,3}\\)|[a-c][<>]-?[0-9]{1,3})", 0..5)) {
            let text = terms.join(",");
            if let Ok(selector) = LabelSelector::parse(&text) {
                prop_assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
            }
        }
    }
}
