package main

import (
	"bytes"
	"os"
	"testing"
)

func TestSampleEnvIsCurrent(t *testing.T) {
	var want bytes.Buffer
	if err := writeSample(&want); err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("../../sample.env")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want.Bytes()) {
		t.Error("sample.env is not what the settings say: run make sample-env")
	}
}
