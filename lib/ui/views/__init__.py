"""Tables, charts and sentences, drawn from given data; nothing here runs anything."""
