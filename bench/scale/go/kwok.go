//go:build tools

// Package tools names the program that is built from this module: kwok, whose nodes and pods exist as objects only.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
