module rljob.io/tests/pause

go 1.26
