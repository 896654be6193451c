// Package conformance is the conformance suite of the Gateway API, compiled into one program with the manifests
// of its tests.
package conformance

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestConformance(t *testing.T) { conformance.RunConformance(t) }
