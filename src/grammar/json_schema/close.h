// Makes schemas of objects stricter for answers of models.
#pragma once

#include "base/json.h"

namespace sluice::grammar {

// Adds `additionalProperties: false` to objects that declare `properties` and say nothing of others, as OpenAI's strict
// schemas demand. A model then writes what is declared and nothing else, and every such text satisfies `schema`, too.
// Returns `schema` unchanged if it puts objects together from several schemas or counts which of them match (allOf,
// oneOf, not, if, contains, ...): closed parts could exclude each other, or more texts could match.
Json close_objects(const Json& schema);

}  // namespace sluice::grammar
