//! JSON Schema of the rows.

use utoipa::openapi::schema::{AdditionalProperties, SchemaFormat, SchemaType, Type};
use utoipa::openapi::schema::{Array, KnownFormat, Object as Properties, OneOf};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{Number, PartialSchema};

use super::{Kind, Member, Object};

/// The schema of an object, with references to those in it.
pub fn schema_of(object: &Object) -> Properties {
    let mut schema = Properties::new();
    schema.description = Some(object.doc.to_owned());
    for member in object.members {
        schema
            .properties
            .insert(member.name.to_owned(), member.schema());
        if member.name == "model" {
            schema.required.push(member.name.to_owned());
        }
    }
    let nothing_else = AdditionalProperties::FreeForm(false);
    schema.additional_properties = Some(Box::new(nothing_else));
    schema
}

impl Member {
    fn schema(&self) -> RefOr<Schema> {
        let mut schema = Properties::new();
        schema.schema_type = SchemaType::AnyValue;
        schema.description = Some(self.doc.to_owned());
        schema.example = self
            .example
            .map(|json| serde_json::from_str(json).expect("examples are JSON"));
        let or_null = |kind: Type| SchemaType::from_iter([kind, Type::Null]);
        match self.kind {
            Kind::Whole(least, most) => {
                schema.schema_type = or_null(Type::Integer);
                schema.format = Some(SchemaFormat::KnownFormat(KnownFormat::Int64));
                schema.minimum = usize::try_from(least).ok().map(Number::UInt);
                schema.maximum = usize::try_from(most).ok().map(Number::UInt);
            }
            Kind::Number(..) | Kind::Positive => {
                schema.schema_type = or_null(Type::Number);
                schema.format = Some(SchemaFormat::KnownFormat(KnownFormat::Double));
                if let Kind::Number(least, most) = self.kind {
                    schema.minimum = Some(Number::Float(least));
                    schema.maximum = Some(Number::Float(most));
                } else {
                    schema.exclusive_minimum = Some(Number::Float(0.0));
                }
            }
            Kind::Bool => schema.schema_type = or_null(Type::Boolean),
            Kind::Text => schema.schema_type = or_null(Type::String),
            Kind::Word(_, words) => {
                schema.schema_type = or_null(Type::String);
                schema.pattern = Some(format!("^({})$", words().join("|")));
            }
            Kind::Globs => {
                let mut list = Array::new(String::schema());
                list.schema_type = or_null(Type::Array);
                list.description = schema.description;
                list.example = schema.example;
                return Schema::Array(list).into();
            }
            Kind::Object(object) => {
                let mut reference = Ref::from_schema_name(object.schema);
                self.doc.clone_into(&mut reference.description);
                if self.name == "model" {
                    return reference.into();
                }
                let mut either = OneOf::new();
                let mut null = Properties::new();
                null.schema_type = SchemaType::new(Type::Null);
                either.items = vec![reference.into(), Schema::Object(null).into()];
                return Schema::OneOf(either).into();
            }
            Kind::Bools | Kind::Words(_) | Kind::Size | Kind::Other => {}
        }
        Schema::Object(schema).into()
    }
}
