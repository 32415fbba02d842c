//! What the generator cannot say of the API, or says so that other generators stumble.

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use crate::http::response::problem::PROBLEM_JSON;
use crate::http::server::keys::is_open;
use batchfit_models::members::{Kind, OBJECTS};

/// Requests that show what the bodies of these operations are.
const EXAMPLES: &str = include_str!("examples.json");

/// What each operation refuses, by its status: what that means, or that and an example.
const REFUSALS: &str = include_str!("refusals.json");

/// Lists by their schemas: that of an item, what it is, and what is in it.
const LISTS: &str = include_str!("lists.json");

/// Schemas of bodies that no type here is the whole of.
const BODIES: &str = include_str!("bodies.yaml");

/// Answers that any request may get, by their status: what they are called, and what they mean.
#[rustfmt::skip] // A row a line.
const ANY: [(&str, &str, &str); 7] = [
    ("400", "BadRequest", "What was sent is no request of HTTP, or no JSON where it is to be"),
    ("401", "Unauthorized", "The key is missing or wrong"),
    ("403", "Forbidden", "A page of another origin asked, or the key does not allow it"),
    ("405", "MethodNotAllowed", "The path does not answer this method"),
    ("421", "Misdirected", "The service is not known under this `Host`"),
    ("429", "TooMany", "The key asks too often"),
    ("503", "Unavailable", "The service is busy or about to end; ask again"),
];

/// The document as it is published.
pub(super) fn finish(generated: &OpenApi) -> Value {
    // By way of its text, which `utoipa` writes: to have it written as a value was a thirtieth of this crate's code.
    let text = generated.to_json().expect("the document has string keys");
    let mut document: Value = serde_json::from_str(&text).expect("it has just been written");
    let mut bodies: Map<String, Value> = serde_norway::from_str(BODIES).expect("it is YAML");
    let lists: Map<String, Value> = serde_json::from_str(LISTS).expect("it is JSON");
    let lists = lists
        .into_iter()
        .map(|(name, list)| (name, self::list(&list)));
    let schemas = document["components"]["schemas"].as_object_mut();
    let schemas = schemas.expect("there are schemas");
    bodies["NewProbe"] = with_batch(schemas["Request"].clone(), bodies["NewProbe"].take());
    schemas.extend(lists.chain(bodies));
    name_choices(&mut document);
    files(&mut document);
    word_members(&mut document);
    enumerate(&mut document);
    let responses = &mut document["components"]["responses"];
    for (_, name, description) in ANY {
        responses[name] = problem(description);
    }
    document["components"]["securitySchemes"] = json!({
        "key": {"type": "http", "scheme": "bearer", "description": "A key of `batchfit keys create`; none is needed on loopback"}
    });
    document["security"] = json!([{}, {"key": []}]);
    let [examples, refusals]: [Value; 2] =
        [EXAMPLES, REFUSALS].map(|text| serde_json::from_str(text).expect("it is JSON"));
    let paths = document["paths"].as_object_mut().expect("there are paths");
    for (path, item) in paths {
        for (_, operation) in item.as_object_mut().into_iter().flatten() {
            finish_operation(path, operation, &examples, &refusals);
        }
    }
    document
}

/// A request with further members: one object, and not a request `allOf` something else, because a request admits no further members.
fn with_batch(mut request: Value, mut further: Value) -> Value {
    request["description"] = json!("A request and the batch to try.");
    request["required"] = json!(["model", "batch"]);
    let members = request["properties"].as_object_mut();
    let members = members.expect("a request has members");
    members.extend(std::mem::take(
        further.as_object_mut().expect("so has a probe"),
    ));
    members.sort_keys();
    request
}

fn list(list: &Value) -> Value {
    let is_page = list[1]
        .as_str()
        .is_some_and(|what| what.starts_with("A page"));
    let next = if is_page {
        "The `cursor` of the next page; null on the last one."
    } else {
        "Always null: there is one page."
    };
    let item = format!(
        "#/components/schemas/{}",
        list[0].as_str().unwrap_or_default()
    );
    json!({
        "type": "object", "description": list[1], "required": ["items"],
        "properties": {
            "items": {"type": "array", "items": {"$ref": item}, "description": list[2]},
            "next": {"type": ["string", "null"], "description": next}
        }
    })
}

fn problem(description: &str) -> Value {
    json!({
        "description": description,
        "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    })
}

/// A refusal. One that is for the moment says when to ask again, but where numbers are asked for again anyway.
fn refused(status: &str, refusal: &Value) -> Value {
    let description = refusal.as_str().or(refusal["description"].as_str());
    let mut refused = json!({"description": description});
    if status == "503" && refusal["retry"].is_null() {
        let seconds = json!({"schema": {"type": "integer", "format": "int64", "minimum": 0}});
        refused["headers"] = json!({"Retry-After": seconds});
    }
    refused["content"] = problem("")["content"].take();
    if let Some(example) = refusal.get("example") {
        refused["content"][PROBLEM_JSON]["example"] = example.clone();
    }
    refused
}

/// Paths that need nothing which could fail.
const SURE: [&str; 2] = ["/v1/events", "/v1/presets"];

fn finish_operation(path: &str, operation: &mut Value, examples: &Value, refusals: &Value) {
    let is_open = is_open(path);
    if is_open {
        operation["security"] = json!([]);
    }
    // Linters want a description where the summary has said it all.
    if operation["description"].is_null() {
        operation["description"] = operation["summary"].clone();
    }
    let id = operation["operationId"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let responses = operation["responses"]
        .as_object_mut()
        .expect("each operation answers");
    for (status, refusal) in refusals[&id].as_object().into_iter().flatten() {
        responses.insert(status.clone(), refused(status, refusal));
    }
    let has_body = responses.contains_key("413");
    for (status, name, _) in ANY {
        let is_of_keys = status == "401" || status == "429";
        if !(is_open && is_of_keys || responses.contains_key(status)) {
            responses.insert(
                status.to_owned(),
                json!({"$ref": format!("#/components/responses/{name}")}),
            );
        }
    }
    let mut fail = |status: &str, what: &str| responses.insert(status.to_owned(), problem(what));
    if path.starts_with("/v1/") && !SURE.contains(&path) {
        fail("500", "A fault of ours");
    }
    if has_body {
        fail("408", "The body did not arrive in time");
        fail("415", "The body is compressed otherwise than with gzip");
    }
    responses.sort_keys();
    if let Some(body) = operation.get_mut("requestBody") {
        body["required"] = Value::Bool(true);
    }
    if let Some(example) = examples.get(&id) {
        for (_, content) in operation["requestBody"]["content"]
            .as_object_mut()
            .into_iter()
            .flatten()
        {
            content["example"] = example.clone();
        }
    }
}

/// Gives choices that have a title a name: generators make a class of each, and two titles of one name, or of the name
/// of a schema, would be one class.
fn name_choices(document: &mut Value) {
    let schemas = document["components"]["schemas"]
        .as_object_mut()
        .expect("there are schemas");
    let mut named = Map::new();
    for (owner, schema) in schemas.iter_mut() {
        // The name of a schema is its title.
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("title");
        }
        for choice in schema
            .get_mut("oneOf")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let Some(title) = choice
                .as_object_mut()
                .and_then(|choice| choice.remove("title"))
            else {
                continue;
            };
            let name = format!("{owner}{}", title.as_str().unwrap_or_default());
            let reference = json!({"$ref": format!("#/components/schemas/{name}")});
            named.insert(name, std::mem::replace(choice, reference));
        }
    }
    schemas.append(&mut named);
    schemas.sort_keys();
}

/// Members of a request that take a word or a list of them, or a number or a text.
fn word_members(document: &mut Value) {
    let one_or_many = |words: &[&str], also: Option<Value>| {
        let word = json!({"type": "string", "enum": words});
        let mut one = vec![word.clone()];
        let each = match &also {
            Some(also) => json!({"oneOf": [word, also]}),
            None => word,
        };
        one.extend(also);
        let many = json!({"type": "array", "items": each, "minItems": 1, "uniqueItems": true});
        one.extend([many, json!({"type": "null"})]);
        Value::Array(one)
    };
    let modules = json!({
        "type": "object", "required": ["modules"], "additionalProperties": false,
        "properties": {"modules": {"type": "array", "items": {"type": "string"}, "minItems": 1}}
    });
    let limit =
        json!([{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}, {"type": "null"}]);
    let list = json!({"type": "array", "items": {"type": "string"}, "minItems": 1});
    let device = json!([{"type": "string"}, list, {"type": "null"}]);
    let suggest = json!([{"type": "boolean"}, {"type": "integer", "minimum": 1}, {"type": "null"}]);
    let mut put = |schema: &str, member: &str, choices: &Value| {
        let properties = &mut document["components"]["schemas"][schema]["properties"];
        properties[member]["oneOf"] = choices.clone();
    };
    for object in OBJECTS {
        for member in object.members {
            if let Kind::Words(words) = member.kind {
                let also = (member.name == "checkpointing").then(|| modules.clone());
                put(object.schema, member.name, &one_or_many(&words(), also));
            }
        }
    }
    put("NewSearch", "memory_limit", &limit);
    for schema in ["NewProbe", "Request"] {
        put(schema, "memory_limit", &limit);
        put(schema, "host_memory", &limit);
        put(schema, "device", &device);
        put(schema, "suggest", &suggest);
    }
}

/// Bodies that are files, of any content type.
fn files(document: &mut Value) {
    let operations = document["paths"].as_object_mut().into_iter().flatten();
    for (_, item) in operations {
        for (_, operation) in item.as_object_mut().into_iter().flatten() {
            if let Some(content) =
                operation.pointer_mut("/requestBody/content/application~1octet-stream")
            {
                content["schema"] = json!({"type": "string", "format": "binary"});
            }
        }
    }
}

/// Texts whose pattern is a list of words are those words.
fn enumerate(value: &mut Value) {
    if let Value::Object(members) = value {
        let words = members
            .get("pattern")
            .and_then(Value::as_str)
            .and_then(|pattern| {
                let words = pattern.strip_prefix("^(")?.strip_suffix(")$")?;
                let is_list = words
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_|:-".contains(c));
                is_list.then(|| words.split('|').map(str::to_owned).collect::<Vec<_>>())
            });
        if let Some(words) = words {
            members.remove("pattern");
            let mut values: Vec<Value> = words.into_iter().map(Value::String).collect();
            let may_be_null = members
                .get("type")
                .and_then(Value::as_array)
                .is_some_and(|kinds| kinds.contains(&json!("null")));
            if may_be_null {
                values.push(Value::Null);
            }
            members.insert("enum".to_owned(), Value::Array(values));
        }
        for (_, member) in members {
            enumerate(member);
        }
    } else if let Value::Array(items) = value {
        items.iter_mut().for_each(enumerate);
    }
}
