package docker_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
)

// If the engine cannot inspect one container, List still returns the others.
func TestAContainerThatCannotBeInspectedHidesNoOther(t *testing.T) {
	labels := func(id string) map[string]string {
		return map[string]string{driver.LabelManaged: "true", driver.LabelWorkload: id, driver.LabelCluster: "c", driver.LabelNode: "n", driver.LabelContent: "c1:x"}
	}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		say := func(code int, v any) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(v)
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "/containers/json"):
			var all []any
			for _, id := range []string{"broken", "hung", "web"} {
				all = append(all, map[string]any{"Id": id, "Names": []string{"/" + id}, "State": "running", "Labels": labels(id)})
			}
			say(http.StatusOK, all)
		case strings.HasSuffix(r.URL.Path, "/broken/json"):
			say(http.StatusInternalServerError, map[string]string{"message": "RWLayer of container broken is unexpectedly nil"})
		case strings.HasSuffix(r.URL.Path, "/hung/json"):
			<-r.Context().Done()
		case strings.HasSuffix(r.URL.Path, "/web/json"):
			say(http.StatusOK, map[string]any{"Id": "web", "Name": "/web", "State": map[string]any{"Status": "running"}, "Config": map[string]any{"Labels": labels("web")}})
		default:
			w.Header().Set("Api-Version", "1.47")
		}
	}))
	defer engine.Close()
	d, err := docker.New(docker.Options{Host: "tcp://" + engine.Listener.Addr().String(), ClusterID: "c", NodeID: "n"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	seen, err := d.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		id    driver.ID
		state driver.State
		says  string
	}{{"broken", driver.Unknown, "RWLayer of container broken"}, {"hung", driver.Unknown, "container hung: context deadline exceeded"}, {"web", driver.Running, "running"}} {
		if len(seen) != 3 || seen[i].ID != want.id || seen[i].State != want.state || seen[i].Content != "c1:x" || !seen[i].Owned || !strings.Contains(seen[i].Message, want.says) {
			t.Fatalf("one container cannot be inspected: List returned %+v, want %+v", seen, want)
		}
	}
}

// The engine walks the files of containers to compute their sizes. This may take long, and Garbage must find
// leftovers without waiting for it.
func TestGarbageIsFoundWithoutSizes(t *testing.T) {
	labels := map[string]string{driver.LabelManaged: "true", driver.LabelWorkload: "web", driver.LabelCluster: "c", driver.LabelNode: "n"}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasSuffix(r.URL.Path, "/containers/json"):
			w.Header().Set("Api-Version", "1.47")
		case r.URL.Query().Get("size") != "":
			<-r.Context().Done()
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode([]any{map[string]any{"Id": "web", "Names": []string{"/web"}, "Labels": labels}})
		}
	}))
	defer engine.Close()
	d, err := docker.New(docker.Options{Host: "tcp://" + engine.Listener.Addr().String(), ClusterID: "c", NodeID: "n", CallTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	none := func(driver.ID) bool { return false }
	got, err := d.Garbage(context.Background(), driver.GarbageQuery{Wanted: none, Busy: none, ImageBudget: -1})
	if err != nil || len(got) != 1 || got[0].Kind != driver.Orphan || got[0].Name != "web" {
		t.Errorf("Garbage returned %+v, error %v; want the orphan web", got, err)
	}
}
