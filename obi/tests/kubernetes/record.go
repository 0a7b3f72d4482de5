// Writes the streams that the tests replay, by the messages of Kubernetes itself: an oracle that this agent's
// decoder did not have a hand in.
//
//	go mod init record && go get k8s.io/api@v0.37.2 k8s.io/kubelet@v0.37.2 && go run . DIRECTORY
package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	pods "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

var yes = true

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// unknown wraps an object as the API server does.
func unknown(kind string, raw []byte) []byte {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: raw}
	return append([]byte("k8s\x00"), must(u.Marshal())...)
}

func watched(kind, object string, raw []byte) []byte {
	e := metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: unknown(object, raw)}}
	bytes := must(e.Marshal())
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(bytes))), bytes...)
}

func reported(kind pods.EventType, pod *v1.Pod) []byte {
	e := &pods.WatchPodsEvent{Type: kind}
	if pod != nil {
		e.Pod = must(pod.Marshal())
	}
	bytes := must(proto.Marshal(e))
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(bytes))), bytes...)
}

func cart() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "cart-5d4f8c7b9-x2x4z", GenerateName: "cart-5d4f8c7b9-", Namespace: "shop",
			UID: "4f4f5e6e-02ab-4c1d-9a0b-0123456789ab", ResourceVersion: "101",
			CreationTimestamp: metav1.NewTime(time.Unix(1_790_000_000, 0)),
			Labels: map[string]string{"pod-template-hash": "5d4f8c7b9", "app.kubernetes.io/name": "cart",
				"app.kubernetes.io/instance": "shop-eu", "app.kubernetes.io/version": "9.9", "team": "payments"},
			Annotations: map[string]string{"resource.opentelemetry.io/deployment.environment.name": "production",
				"prometheus.io/scrape": "true"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Other", Name: "no-controller", UID: "1"},
				{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cart-5d4f8c7b9", UID: "2", Controller: &yes}},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: &metav1.FieldsV1{Raw: []byte("{}")}}},
		},
		Spec: v1.PodSpec{
			NodeName: "node-a", ServiceAccountName: "default", DNSPolicy: "ClusterFirst",
			InitContainers: []v1.Container{{Name: "migrate", Image: "registry.example:5000/shop/migrate:3"}},
			Containers: []v1.Container{
				{Name: "app", Image: "registry.example:5000/shop/cart:1.24.3",
					Env:   []v1.EnvVar{{Name: "SECRET", Value: "hunter2"}},
					Ports: []v1.ContainerPort{{ContainerPort: 8080, Name: "http"}}},
				{Name: "proxy", Image: "envoy@sha256:0123"}},
			EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "busybox"}}},
		},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
}

func running(pod *v1.Pod, version string) *v1.Pod {
	pod = pod.DeepCopy()
	pod.ResourceVersion = version
	id := func(c byte) string {
		bytes := make([]byte, 64)
		for at := range bytes {
			bytes[at] = c
		}
		return "containerd://" + string(bytes)
	}
	started := true
	pod.Status = v1.PodStatus{
		Phase: v1.PodRunning, HostIP: "10.0.0.1", PodIP: "10.244.0.7",
		PodIPs:     []v1.PodIP{{IP: "10.244.0.7"}, {IP: "fd00::7"}},
		Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
		ContainerStatuses: []v1.ContainerStatus{
			{Name: "app", Ready: true, Image: "cart", ImageID: "cart@sha256:9", ContainerID: id('a'), Started: &started,
				State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}},
			{Name: "proxy", Ready: true, ContainerID: id('b')}},
		InitContainerStatuses:      []v1.ContainerStatus{{Name: "migrate", ContainerID: id('c')}},
		EphemeralContainerStatuses: []v1.ContainerStatus{{Name: "debug", ContainerID: id('d')}},
	}
	return pod
}

func etcd(uid, manifest string) *v1.Pod {
	annotations := map[string]string{"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": manifest}
	if uid != manifest {
		annotations["kubernetes.io/config.mirror"] = manifest
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "etcd-node-a", Namespace: "kube-system", ResourceVersion: "90",
			Annotations:     annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-a", UID: "3", Controller: &yes}}},
		Spec:   v1.PodSpec{NodeName: "node-a", HostNetwork: true, Containers: []v1.Container{{Name: "etcd", Image: "etcd:3.6"}}},
		Status: v1.PodStatus{Phase: v1.PodRunning, HostIP: "10.0.0.1", PodIP: "10.0.0.1"},
	}
}

func services() []*v1.Service {
	meta := func(name, uid string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(uid), ResourceVersion: "201",
			Labels: map[string]string{"app": name}}
	}
	return []*v1.Service{
		{ObjectMeta: meta("cart", "c1"),
			Spec: v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7", "fd00:96::7"},
				ExternalIPs: []string{"192.0.2.7"}, Selector: map[string]string{"app": "cart"},
				Ports: []v1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}}},
			Status: v1.ServiceStatus{LoadBalancer: v1.LoadBalancerStatus{Ingress: []v1.LoadBalancerIngress{{IP: "198.51.100.7"}, {Hostname: "cart.example"}}}}},
		{ObjectMeta: meta("cart-pods", "c2"), Spec: v1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}}},
		{ObjectMeta: meta("elsewhere", "c3"), Spec: v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "example.com"}},
	}
}

func slices() []*discovery.EndpointSlice {
	port := func(port int32) discovery.EndpointPort {
		name, protocol := "http", v1.ProtocolTCP
		return discovery.EndpointPort{Name: &name, Protocol: &protocol, Port: &port}
	}
	ready := true
	endpoint := func(addresses ...string) discovery.Endpoint {
		return discovery.Endpoint{Addresses: addresses, Conditions: discovery.EndpointConditions{Ready: &ready},
			TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "cart-1"}}
	}
	meta := func(name, service string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name), ResourceVersion: "301",
			Labels: map[string]string{"kubernetes.io/service-name": service}}
	}
	return []*discovery.EndpointSlice{
		{ObjectMeta: meta("cart-1", "cart"), AddressType: discovery.AddressTypeIPv4,
			Endpoints: []discovery.Endpoint{endpoint("10.244.3.7"), endpoint("10.244.4.8")}, Ports: []discovery.EndpointPort{port(8080), port(9090)}},
		{ObjectMeta: meta("any-1", "any"), AddressType: discovery.AddressTypeIPv6,
			Endpoints: []discovery.Endpoint{endpoint("fd00::9")}, Ports: []discovery.EndpointPort{{}}},
		{ObjectMeta: meta("names-1", "names"), AddressType: discovery.AddressTypeFQDN, Endpoints: []discovery.Endpoint{endpoint("cart.example")}},
		{ObjectMeta: metav1.ObjectMeta{Name: "own", Namespace: "shop", UID: "own"}, AddressType: discovery.AddressTypeIPv4,
			Endpoints: []discovery.Endpoint{endpoint("10.244.9.9")}},
	}
}

func main() {
	const manifest = "0123456789abcdef0123456789abcdef"
	mirror, own := etcd("x", manifest), etcd(manifest, manifest)
	mirror.UID, own.UID = "11111111-2222-3333-4444-555555555555", manifest
	pending := cart()
	runs := running(pending, "103")
	ending := runs.DeepCopy()
	ending.ResourceVersion = "104"
	now := metav1.NewTime(time.Unix(1_790_000_100, 0))
	ending.DeletionTimestamp = &now
	least := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pending.Name, Namespace: pending.Namespace, UID: pending.UID}}
	bookmark := func(version string, initial bool) []byte {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
		if initial {
			pod.Annotations = map[string]string{"k8s.io/initial-events-end": "true"}
		}
		return watched("BOOKMARK", "Pod", must(pod.Marshal()))
	}
	event := func(kind string, pod *v1.Pod) []byte { return watched(kind, "Pod", must(pod.Marshal())) }
	status := metav1.Status{Status: "Failure", Message: "too old resource version: 1 (2)", Reason: "Expired", Code: 410}
	list := v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "100"}, Items: []v1.Pod{*mirror, *pending}}
	join := func(parts ...[]byte) (all []byte) {
		for _, part := range parts {
			all = append(all, part...)
		}
		return
	}
	write := func(name string, bytes []byte) {
		if err := os.WriteFile(filepath.Join(os.Args[1], name), bytes, 0o644); err != nil {
			panic(err)
		}
	}
	write("api_initial.bin", join(event("ADDED", mirror), event("ADDED", pending), bookmark("102", true)))
	write("api_changes.bin", join(event("MODIFIED", runs), bookmark("103", false), event("MODIFIED", ending), event("DELETED", ending)))
	write("api_gone.bin", watched("ERROR", "Status", must(status.Marshal())))
	refused := metav1.Status{Status: "Failure", Code: 500,
		Message: "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled"}
	write("api_refused.bin", watched("ERROR", "Status", must(refused.Marshal())))
	write("api_list.bin", unknown("PodList", must(list.Marshal())))
	var known, parts [][]byte
	for _, service := range services() {
		known = append(known, watched("ADDED", "Service", must(service.Marshal())))
	}
	for _, slice := range slices() {
		parts = append(parts, watched("ADDED", "EndpointSlice", must(slice.Marshal())))
	}
	// A bookmark is an empty object of its kind: its metadata stands where a pod's does.
	write("api_services.bin", join(append(known, bookmark("202", true))...))
	write("api_slices.bin", join(append(parts, bookmark("302", true))...))
	write("kubelet_initial.bin", join(reported(pods.EventType_ADDED, own), reported(pods.EventType_ADDED, pending), reported(pods.EventType_INITIAL_SYNC_COMPLETE, nil)))
	write("kubelet_changes.bin", join(reported(pods.EventType_MODIFIED, runs), reported(pods.EventType_DELETED, least)))
}
