import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { postgres } from './recipes.ts'
import { asUser, type ServerRecipe } from './server.ts'

/** A standby that follows the server on this port, and becomes a primary by `SELECT pg_promote()`. */
export function postgresStandby(primaryPort: number): ServerRecipe {
  const recipe = postgres()
  return {
    ...recipe,
    name: 'PostgreSQL standby',
    prepare(folder) {
      const program = recipe.program.replace(/postgres$/, 'pg_basebackup')
      const source = `host=127.0.0.1 port=${primaryPort} user=postgres application_name=standby`
      const backup = ['-D', join(folder, 'data'), '-R', '-X', 'stream', '--checkpoint=fast', '--no-sync', '-d', source]
      const [command, args] = asUser(recipe.user, program, backup)
      const { status, stderr } = spawnSync(command, args, { encoding: 'utf8', cwd: folder })
      if (status !== 0) throw new Error(`pg_basebackup failed: ${stderr}`)
    },
  }
}
