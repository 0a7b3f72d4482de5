// Decodes manifests strictly by Kubernetes' own types: a field that they do not have, a wrong type or a key that stands
// twice is an error. Prints each object as JSON, one a line. script/check-chart builds it with the types of several
// versions.
//
//	strict FILE...
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	reader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// What the chart may render, and nothing else.
var kinds = map[string]func() any{
	"apps/v1 DaemonSet":                               func() any { return &apps.DaemonSet{} },
	"monitoring.coreos.com/v1 PodMonitor":             func() any { return &monitoring.PodMonitor{} },
	"monitoring.coreos.com/v1 PrometheusRule":         func() any { return &monitoring.PrometheusRule{} },
	"monitoring.coreos.com/v1 ServiceMonitor":         func() any { return &monitoring.ServiceMonitor{} },
	"networking.k8s.io/v1 NetworkPolicy":              func() any { return &networking.NetworkPolicy{} },
	"rbac.authorization.k8s.io/v1 ClusterRole":        func() any { return &rbac.ClusterRole{} },
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding": func() any { return &rbac.ClusterRoleBinding{} },
	"v1 ConfigMap":      func() any { return &core.ConfigMap{} },
	"v1 Namespace":      func() any { return &core.Namespace{} },
	"v1 Service":        func() any { return &core.Service{} },
	"v1 ServiceAccount": func() any { return &core.ServiceAccount{} },
}

func decode(document []byte) (string, error) {
	var of meta.TypeMeta
	if err := yaml.Unmarshal(document, &of); err != nil {
		return "", err
	}
	kind := of.APIVersion + " " + of.Kind
	object, known := kinds[kind]
	if !known {
		return kind, errors.New("is not of the chart's kinds")
	}
	return kind, yaml.UnmarshalStrict(document, object())
}

// Whether there is anything but comments.
func isEmpty(document []byte) bool {
	for _, line := range strings.Split(string(document), "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

func check(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	documents := reader.NewYAMLReader(bufio.NewReader(file))
	count := 0
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if isEmpty(document) {
			continue
		}
		if kind, err := decode(document); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		json, err := yaml.YAMLToJSON(document)
		if err != nil {
			return err
		}
		fmt.Println(string(json))
		count++
	}
	if count == 0 {
		return errors.New("nothing in it")
	}
	return nil
}

func main() {
	failed := false
	for _, path := range os.Args[1:] {
		if err := check(path); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			failed = true
		}
	}
	if failed || len(os.Args) == 1 {
		os.Exit(1)
	}
}
