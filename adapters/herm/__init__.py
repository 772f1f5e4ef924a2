"""The herm dialect: a REST API with typed envelopes over SSE, resumed by `Last-Event-ID`."""
